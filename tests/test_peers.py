"""What docs/peers.md says of other libraries, where they are installed; tied norms of two are in tests/gradients."""

from __future__ import annotations

import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dprec.accounting.ledger import Event, Ledger
from tests.studies import run

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "peers.md"
USERS, BATCH, ROWS = 200, 20, 30


class Bags(nn.Module):
    """A table of which the users below read the first rows alone, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.score = nn.Embedding(ROWS, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.score(self.table(ids).sum(1))
        return scores


def users() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randint(ROWS // 2, (USERS, 3)), torch.randint(2, (USERS,)))


def with_opacus(**options: Any) -> tuple[Any, Any, Any, Any]:
    opacus = pytest.importorskip("opacus")
    model, engine = Bags(), opacus.PrivacyEngine()
    loader, optimizer = DataLoader(users(), batch_size=BATCH), torch.optim.SGD(model.parameters(), lr=1.0)
    made = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0, **options
    )
    return engine, *made


def with_fastdp() -> tuple[Any, Any, Any]:
    fastdp = pytest.importorskip("fastDP", reason="fastDP is installed from its repository, not from the package index")
    model = Bags()
    with contextlib.redirect_stdout(io.StringIO()):
        engine = fastdp.PrivacyEngine(
            model, batch_size=BATCH, sample_size=USERS, epochs=1, noise_multiplier=1.0, max_grad_norm=1.0,
            target_delta=1e-4,
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine.attach(optimizer)
    return engine, model, optimizer


def spent(rate: float, steps: int) -> float:
    ledger = Ledger()
    for _ in range(steps):
        ledger.record(Event("poisson_gaussian", 1.0, rate) if rate < 1 else Event("gaussian", 1.0))
    return ledger.epsilon(1e-4)


def trained_on(model: Any, optimizer: Any, batches: Any) -> Tensor:
    """Return how far each row of the table moves."""
    before = next(p for p in model.parameters() if p.shape == (ROWS, 4)).detach().clone()
    for ids, kinds in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(ids), kinds).backward()
        optimizer.step()
    after = next(p for p in model.parameters() if p.shape == (ROWS, 4)).detach()
    return (after - before).norm(dim=1)


def test_opacus_draws_as_it_accounts_unless_it_is_told_otherwise() -> None:
    """By default users are drawn one by one; without, batches are the loader's and ε is the same as if they were."""
    found = {}
    for poisson in (True, False):
        engine, model, optimizer, loader = with_opacus(poisson_sampling=poisson)
        sizes = [len(kinds) for _, kinds in loader]
        trained_on(model, optimizer, loader)
        found[poisson] = (len(set(sizes)) > 1, engine.accountant.history)
    assert (found[True][0], found[False][0]) == (True, False)
    assert found[True][1] == found[False][1] == [(1.0, BATCH / USERS, USERS // BATCH)]


def test_fastdp_accounts_for_draws_that_nobody_makes() -> None:
    """Every user is in every step, and ε is that of a tenth of them drawn at random."""
    engine, model, optimizer = with_fastdp()
    ids, kinds = users().tensors
    trained_on(model, optimizer, [(ids[:BATCH], kinds[:BATCH])] * 10)  # the same users each time
    (said,) = (value for key, value in engine.get_privacy_spent(accounting_mode="rdp").items() if "eps" in key)
    assert said < 1.5 * spent(BATCH / USERS, 10)
    assert said < 0.5 * spent(1.0, 10)  # what these users did spend


def test_opake_draws_by_poisson_and_accounts_for_it_where_the_rate_is_the_same() -> None:
    dpsgd = pytest.importorskip("opake.dpsgd")
    from opake.random import key

    draws = list(dpsgd.PoissonSampler(range(USERS), sample_rate=BATCH / USERS, n_steps=400, key=key(1)))
    each = np.bincount(np.concatenate([np.asarray(draw, int) for draw in draws]), minlength=USERS)
    assert abs(each.mean() / 400 - BATCH / USERS) < 4 * (0.09 / (400 * USERS)) ** 0.5
    assert each.var() == pytest.approx(400 * 0.09, rel=0.4)  # as independent draws have it
    assert np.var([len(draw) for draw in draws]) == pytest.approx(USERS * 0.09, rel=0.3)
    try:
        from opake.dpsgd import accounting
    except TypeError as error:
        pytest.skip(f"Opake's accounting does not import on this Python: {error}")
    steps = accounting.poisson(accounting.gaussian(1.0), sample_rate=BATCH / USERS) * 10  # the rate is given again
    assert steps.epsilon_at(1e-4) == pytest.approx(spent(BATCH / USERS, 10), rel=0.02)


def test_opakes_sum_of_a_tied_model_is_exact() -> None:
    pytest.importorskip("opake")
    from dprec.benchmarks.peers import Opake
    from dprec.benchmarks.phantom import SMALL, TOLERANCE, clip_error

    assert all(clip_error(Opake, shape, 4) < TOLERANCE for shape in SMALL)


def test_jax_privacys_sum_of_a_tied_model_is_exact(tmp_path: Path) -> None:
    pytest.importorskip("jax_privacy")
    plain, clipped = run(tmp_path, "jax_step")
    assert "error" not in plain
    assert clipped["error"] < 1e-5


def test_jax_privacy_draws_what_its_plan_accounts_for() -> None:
    """A plan has both: a strategy that draws by Poisson, and the event of the same rate and steps."""
    execution_plan = pytest.importorskip("jax_privacy.experimental.execution_plan")
    rate, steps = BATCH / USERS, 300
    config = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=1, iterations=steps, noise_multiplier=1.0, epsilon=None, delta=None, sampling_prob=rate
    )
    plan = config.plan
    drawn = [len(draw) for draw in plan.batch_selection_strategy.batch_iterator(USERS, rng=np.random.default_rng(0))]
    assert len(drawn) == steps
    assert np.var(drawn) == pytest.approx(USERS * 0.09, rel=0.4)
    assert (plan.dp_event.event.sampling_probability, plan.dp_event.count) == (rate, steps)


@pytest.mark.parametrize("peer", ["Opacus", "fastDP"])
def test_others_add_noise_to_rows_that_nobody_reads(peer: str) -> None:
    made = with_fastdp() if peer == "fastDP" else with_opacus(poisson_sampling=False)[:3]
    model, optimizer, (ids, kinds) = made[1], made[2], users().tensors
    assert (trained_on(model, optimizer, [(ids[:BATCH], kinds[:BATCH])])[ROWS // 2 :] > 0).all()


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:opacus|fastDP|opake|jax_privacy)/[\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 5
    for name in named:
        spec = find_spec(name.split("/")[0])
        if spec is not None:
            places = [Path(place).parent for place in spec.submodule_search_locations or ()]
            assert any((place / name).is_file() for place in places), name
