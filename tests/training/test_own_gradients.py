"""Hooks, backward passes, casts and switches of one's own: what changes gradients is exact, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dprec import private
from dprec.errors import UserError
from tests.training.scripts import take

USERS, BOUND = 12, 0.05
Losses = Callable[[Any], Tensor]


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def people() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(USERS, 4, generator=draw), torch.arange(USERS) % 3)


def on_hidden(change: Callable[[Tensor], Any]) -> Callable[[nn.Module], Losses]:
    """Losses whose first layer's output meets a function."""

    def make(network: Any) -> Losses:
        def losses(batch: Any) -> Tensor:
            hidden = network[0](batch[0])
            change(hidden)
            return F.cross_entropy(network[2](network[1](hidden)), batch[1], reduction="none")

        return losses

    return make


def plain(network: Any) -> Losses:
    return on_hidden(lambda hidden: None)(network)


def hooked(register: Callable[[Any], Any]) -> Callable[[nn.Module], Losses]:
    def make(network: Any) -> Losses:
        register(network)
        return plain(network)

    return make


def before(act: Callable[[Tensor], Any]) -> Callable[[nn.Module], Losses]:
    """Losses that do something with themselves before they are returned."""

    def make(network: Any) -> Losses:
        def losses(batch: Any) -> Tensor:
            each = plain(network)(batch)
            act(each)
            return each

        return losses

    return make


def triple(module: Any, given: Any, *_: Any) -> Any:
    return tuple(None if each is None else 3 * each for each in given)


def bounded(gradient: Tensor) -> Tensor:
    """What people write against gradients that explode: here no user's alone reaches the bound."""
    return gradient * min(1.0, 1.0 / float(gradient.norm()))


def penalty(network: Any) -> Losses:
    """A penalty on a gradient by a weight, which a user has alone and not in company."""

    def losses(batch: Any) -> Tensor:
        each = plain(network)(batch)
        (gradient,) = torch.autograd.grad(each.sum(), network[2].weight, create_graph=True)
        return each + gradient.square().sum()

    return losses


def adversarial(network: Any) -> Losses:
    """Losses at inputs that were moved by a gradient of their own."""

    def losses(batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(plain(network)((x, batch[1])).sum(), x)
        return plain(network)((batch[0] + gradient, batch[1]))

    return losses


EXACT: dict[str, Callable[[nn.Module], Losses]] = {
    "hook of an activation": on_hidden(lambda h: h.register_hook(lambda g: 2 * g)),
    "hook that bounds each number": on_hidden(lambda h: h.register_hook(lambda g: g.clamp(-BOUND, BOUND))),
    "hook that would mix where gradients are large": on_hidden(lambda h: h.register_hook(bounded)),
    "hook in place": on_hidden(lambda h: h.register_hook(lambda g: g.mul_(2))),
    "forward hook": hooked(lambda net: net[0].register_forward_hook(lambda m, i, o: 2 * o)),
    "forward pre-hook": hooked(lambda net: net[2].register_forward_pre_hook(lambda m, i: (2 * i[0],))),
    "full backward hook": hooked(lambda net: net[2].register_full_backward_hook(triple)),
    "full backward pre-hook": hooked(lambda net: net[2].register_full_backward_pre_hook(triple)),
    "gradient of an input": adversarial,
    "deterministic": plain,
}
REFUSED: dict[str, tuple[Callable[[nn.Module], Losses], str]] = {
    "hook of a parameter": (hooked(lambda net: net[0].weight.register_hook(lambda g: g)), "0.weight' has a hook"),
    "penalty on all": (penalty, "who else is in the batch"),
}  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", EXACT)
def test_what_changes_gradients_of_each_user_alone_is_exact(kind: str) -> None:
    net = network()
    losses, data = EXACT[kind](net), people()
    options: Any = {"noise_multiplier": 1e-7, "delta": 0.01, "clipping": "flat", "max_norm": BOUND, "verify": 1.0}
    run = private(
        net, torch.optim.SGD(net.parameters(), lr=0.1), data, losses=losses, expected_batch=USERS, steps=2, **options
    )
    torch.use_deterministic_algorithms(kind == "deterministic")
    for batch in run:
        run.backward(batch)
        torch.use_deterministic_algorithms(False)
        wanted = [torch.zeros_like(p) for p in net.parameters()]
        for user in range(USERS):
            loss = losses([each[user : user + 1] for each in data.tensors]).sum()
            own = torch.autograd.grad(loss, list(net.parameters()))
            scale = min(1.0, BOUND / float(torch.cat([g.flatten() for g in own]).norm()))
            for total, gradient in zip(wanted, own, strict=True):
                total += scale * gradient
        for parameter, total in zip(net.parameters(), wanted, strict=True):
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad * USERS, total, atol=1e-4 * BOUND)
        run.trained.optimizer.step()
    assert run.steps == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("verify", [0.0, 0.02])
def test_what_else_changes_gradients_is_refused_in_a_script(kind: str, verify: float) -> None:
    (make, said), net = REFUSED[kind], network()
    start = [p.detach().clone() for p in net.parameters()]
    options: Any = {"noise_multiplier": 1.0, "delta": 0.01, "verify": verify}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = private(net, optimizer, people(), losses=make(net), expected_batch=USERS, steps=3, **options)
    with pytest.raises(UserError, match=said) as told:
        take(run)
    assert "\n" not in str(told.value)
    assert all(torch.equal(p, was) for p, was in zip(net.parameters(), start, strict=True))


def test_a_frozen_layer_in_bfloat16_trains_and_is_named() -> None:
    """What a frozen layer says of its precision is in the sentence, so losses may compute with what it gives."""
    net = network()
    frozen = nn.Linear(4, 4).bfloat16().requires_grad_(False)
    net.add_module("frozen", frozen)

    def losses(batch: Any) -> Tensor:
        coded = frozen(batch[0].bfloat16())
        size = (coded.unsqueeze(1) @ coded.unsqueeze(2)).flatten(1).float()
        return plain(net)((batch[0] * size, batch[1]))

    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    run = private(net, optimizer, people(), losses=losses, noise_multiplier=1.0, delta=0.01, expected_batch=6, steps=2)
    take(run)
    assert run.steps == 2
    assert "bfloat16" in run.guarantee()
