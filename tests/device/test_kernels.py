"""On a GPU's path, here interpreted, private steps launch the kernels and give the CPU's gradients."""

from __future__ import annotations

import copy
import importlib
import pkgutil

import pytest
import torch

import dprec_kernels
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models.learning.optimizers import make
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import Dense, LazyDP
from dprec.sparsity.lazy.together import FusedTables
from dprec.sparsity.rows.kinds import Strategy
from tests.device.pretend import DEVICE, LAUNCHED, interpreted
from tests.device.steps import Steps
from tests.device.test_training import moved
from tests.sparsity.support import Bags, Run, users
from tests.zoo.recommenders import MODELS, batch_for

# What each model's step launches beside the noise.
SOFTMAX = {
    "catalogue_softmax_fwd_kernel",
    "catalogue_softmax_user_norms_kernel",
    "catalogue_softmax_bwd_table_kernel",
}
CLIPPING = {"joint_norms_fwd_kernel", "user_scales_fwd_kernel", "joint_sums_fwd_kernel"}
LINEAR = CLIPPING | {"joint_tiles_fwd_kernel"}
LAUNCHES = {
    "transformer": SOFTMAX | LINEAR,
    "transformer-untied": SOFTMAX | LINEAR | {"rows_norms_fwd_kernel"},
    "dpformer": SOFTMAX | LINEAR,
    "spectral-former": LINEAR,
    "gru": SOFTMAX | LINEAR,
    "pctr": CLIPPING | {"rows_norms_fwd_kernel"},  # of one position: no gradient is built
    "scales-and-products": SOFTMAX | CLIPPING,
}
QUICK = {"pctr", "scales-and-products"}  # a step of others takes seconds in the interpreter
# What a step of LazyDP launches for its tables: with noise of many steps at once, and replayed.
OF_TABLES = {
    True: {"lazy_noise_fwd_kernel", "sparse_update_fwd_kernel", "row_sums_fwd_kernel"},
    False: {"row_noise_fwd_kernel", "row_sums_fwd_kernel"},
}


def launched(model: torch.nn.Module, name: str, sigma: float) -> set[str]:
    """Take one private step by the kernels, and return the names of those."""
    LAUNCHED.clear()
    gradient = PrivateGradient(Clipping(), StepNoise(GaussianNoise(1), sigma, 5), padding_rows(model))
    with interpreted():
        gradient(trained_parameters(model), model.losses, [moved(batch_for(name, 5))])
    return set(LAUNCHED)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly) for name in LAUNCHES]
)
def test_gradients_are_those_of_the_cpu(name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name]()
    gradient = PrivateGradient(Clipping(), StepNoise(GaussianNoise(1), 0.0, 5), padding_rows(model))
    there = copy.deepcopy(model).to(DEVICE)
    gradient(trained_parameters(model), model.losses, [batch_for(name, 5)])
    found = launched(there, name, 0.0)
    for (each, exact), parameter in zip(model.named_parameters(), there.parameters(), strict=True):
        if exact.grad is not None:
            assert torch.allclose(parameter.grad.cpu(), exact.grad, atol=1e-5), each
    assert found >= LAUNCHES[name]


def launched_for_tables(strategy: Strategy) -> set[str]:
    LAUNCHED.clear()
    run = Run([strategy], device=DEVICE)
    with interpreted():
        for step in range(2):
            batch = users(3, seed=step)
            run.step(Bags(batch.bags.to(DEVICE), batch.ids.to(DEVICE)))
        run.strategies.settle()
    return set(LAUNCHED)


@pytest.mark.interpreted
@pytest.mark.parametrize("aggregate", OF_TABLES)
def test_tables_with_debts_take_the_kernels(aggregate: bool) -> None:
    assert launched_for_tables(LazyDP(aggregate=aggregate)) >= OF_TABLES[aggregate]


@pytest.mark.interpreted
def test_noise_of_every_row_is_drawn_by_a_kernel_table_by_table() -> None:
    launched_for_tables(Dense())
    assert LAUNCHED.count("dense_noise_fwd_kernel") == 2 * (2 + 1)  # two steps of two tables, and of all else


@pytest.mark.interpreted
def test_tables_at_once_are_those_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for at_once in (True, False):
        monkeypatch.setattr(FusedTables, "fits", lambda lazy, several=at_once: several)
        torch.manual_seed(1)
        steps = Steps("dlrm, lazydp", users=2, tables=2)
        with interpreted():
            for seed in range(2):
                steps.take_private(steps.batch_of(seed))
        steps.strategies.settle()
        weights.append([value.cpu() for value in steps.private.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.interpreted
def test_rows_of_several_tables_step_at_once() -> None:
    torch.manual_seed(1)
    weights = [torch.randn(5, 3), torch.randn(7, 1), torch.randn(4, 6)]
    rows = [torch.tensor([0, 3]), torch.tensor([6]), torch.tensor([1, 2, 3])]
    gradients = [
        torch.sparse_coo_tensor(
            own[None], torch.randn(len(own), weight.shape[1]), weight.shape, is_coalesced=True, check_invariants=False
        )
        for own, weight in zip(rows, weights, strict=True)
    ]
    stepped = {}
    for device in ("cpu", DEVICE):
        tables = [torch.nn.Parameter(weight.clone().to(device)) for weight in weights]
        for table, gradient in zip(tables, gradients, strict=True):
            table.grad = gradient.to(device)
        LAUNCHED.clear()
        with interpreted():
            make("sgd", iter(tables), 0.3, 0.0, 0.0).step()
        stepped[str(device)] = [table.detach().cpu() for table in tables], list(LAUNCHED)
    (exact, _), (found, launches) = stepped.values()
    assert launches == ["sparse_update_fwd_kernel"]
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(exact, found, strict=True))


@pytest.mark.interpreted
@pytest.mark.nightly
def test_every_kernel_has_a_caller_in_training() -> None:
    found = {kernel for name in LAUNCHES for kernel in launched(MODELS[name]().to(DEVICE), name, 1.0)}
    found |= launched_for_tables(LazyDP()) | launched_for_tables(LazyDP(aggregate=False))
    assert found == kernels()


def kernels() -> set[str]:
    """Return the names of all kernels there are."""
    names = [each.name for each in pkgutil.walk_packages(dprec_kernels.__path__, "dprec_kernels.")]
    modules = [importlib.import_module(name) for name in names if name.endswith(".triton")]
    return {name for module in modules for name in vars(module) if name.endswith("_kernel")}
