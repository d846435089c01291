"""A script trains a model further, and what it states holds for all runs together."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from torch import Tensor

from dprec import Privacy
from dprec.errors import UserError
from tests import luck
from tests.training.scripts import Sorter, take, training


def nights(count: int, **options: Any) -> list[Any]:
    """Return runs of one model, each of which goes on from the one before."""
    module, runs = Sorter(), list[Any]()
    for number in range(count):
        before = json.loads(json.dumps(runs[-1].promise())) if runs else None
        users = torch.utils.data.TensorDataset(torch.randn(60 + number, 4), torch.randint(3, (60 + number,)))
        usual = {"epsilon": 1, "delta": 1e-3, "continue_from": before, "users": users}
        runs.append(take(training(module, **{**usual, **options})))
    return runs


def test_the_cost_of_all_nights_is_what_dp_accounting_composes() -> None:
    *_, last = nights(3)
    told, theirs = last.promise(), PLDAccountant()
    for night in (*told["earlier"], told):
        for event in night["events"]:
            drawn = dp_event.PoissonSampledDpEvent(event["rate"], dp_event.GaussianDpEvent(event["noise_multiplier"]))
            theirs.compose(drawn, event["count"])
    assert [night["units"] for night in (*told["earlier"], told)] == [60, 61, 62]
    assert last.spent == told["epsilon"] == pytest.approx(theirs.get_epsilon(1e-3), rel=2e-3)
    assert 1.5 < last.spent < 3
    sentence = last.guarantee()
    for part in (
        f"({last.spent:.3f}"[:5],
        "in the data of all runs at once, for the models in the checkpoints of this run and of the 2 earlier runs",
        "this run alone has ε = 1;",
        "the days of all runs; of the earlier ones what they assumed, such as their numbers of users",
        "not covered: logged losses",
        "what the earlier runs do not cover, the weights that training of the first run began from",
    ):
        assert part in sentence


def test_a_resumed_night_keeps_what_it_goes_on_from() -> None:
    (before,) = nights(1)
    run = training(Sorter(), epsilon=1, delta=1e-3, continue_from=before.promise())
    for batch in run:
        run.step(batch)
        if run.steps == 2:
            break
    state = run.state_dict()
    state = {**state, "run": json.loads(json.dumps({**state["run"], "sparsity": []}))}
    again = training(run.trained.module, epsilon=1, delta=1e-3)
    again.load_state_dict(state)
    told = run.promise()
    again = take(again).promise()
    assert (again["earlier"], again["began"]) == (json.loads(json.dumps(told["earlier"])), told["began"])
    assert again["epsilon"] > before.spent
    other = training(Sorter(), epsilon=1, delta=1e-3, continue_from=nights(1)[0].promise())
    with pytest.raises(UserError, match="goes on from other runs"):
        other.load_state_dict(state)


def released(model: Sorter, nights_of: Sequence[bool]) -> tuple[list[list[Tensor]], list[Any]]:
    """Return the gradients that the steps of each night release, and the ledgers, with the last person in some nights.

    The weights stay as they are, so that only who is in a night makes a difference.
    """
    gradients, ledgers = list[list[Tensor]](), list[Any]()
    for number, there in enumerate(nights_of):
        torch.manual_seed(number)
        x, kind = torch.randn(30, 4), torch.randint(3, (30,))
        here = torch.ones(30)
        here[-1] = float(there)
        module = copy.deepcopy(model)
        run = training(
            module,
            users=torch.utils.data.TensorDataset(x, kind, here),
            losses=lambda batch: F.cross_entropy(module(batch[0]), batch[1], reduction="none") * batch[2],  # noqa: B023
            optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
            expected_batch=20,
            **{"epsilon": 1, "delta": 1e-3, "max_norm": 0.5, "clipping": "flat"},
            continue_from=ledgers[-1] if ledgers else None,
        )
        with luck.of(f"night {number}"):  # the same draws and noise in all worlds
            gradients.append([])
            for batch in run:
                run.step(batch)
                gradients[-1].append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        ledgers.append(json.loads(json.dumps(run.promise())))
    return gradients, ledgers


@pytest.mark.parametrize("in_nights", [(True, True), (True, False), (False, True)], ids=["both", "left", "joined"])
def test_a_person_moves_the_nights_that_they_are_in_by_the_bound_and_nothing_else(in_nights: tuple[bool, bool]) -> None:
    model = Sorter().eval()
    model.train = lambda mode=True: model  # type: ignore[method-assign]
    nobody, ledgers = released(model, (False, False))
    with_them, theirs = released(model, in_nights)
    for there, without, within in zip(in_nights, nobody, with_them, strict=True):
        moved = [20 * float((one - other).norm()) for one, other in zip(without, within, strict=True)]
        assert max(moved) <= 0.5 * (1 + 1e-5)
        assert (max(moved) > 0.1) is there
    spent = [[(night["epsilon"], night["events"]) for night in each] for each in (ledgers, theirs)]
    assert spent[0] == spent[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": 0.9}, "the earlier run states ε = 0.9, and its events cost 1"),
        ({"guarantee": "not private: a seed"}, "the earlier run is not private"),
        ({"began": "2999-01-01T00:00:00+00:00"}, "began at 2999-01-01.*, which is not before now"),
    ],
)
def test_what_cannot_be_continued_is_one_line(change: dict[str, Any], said: str) -> None:
    (before,) = nights(1)
    with pytest.raises(UserError, match=said):
        training(epsilon=1, continue_from=before.promise() | change)


def test_all_runs_have_one_kind_of_neighbours() -> None:
    (before,) = nights(1)
    with pytest.raises(UserError, match="this one about replacing one user's whole history.*: keep unit and sampling"):
        training(epsilon=1, continue_from=before.promise(), loader={"sampling": "shuffle"})
    with pytest.raises(UserError, match="continue_from comes before training begins"):
        before.run.continue_from(before.promise())


def test_a_ceiling_ends_what_a_run_may_spend() -> None:
    (before,) = nights(1, budget_over_time={"epsilon": 1.5, "days": 2}, epsilon=None)
    assert before.spent < 1.5
    with pytest.raises(UserError, match=r"this run would make ε 2\.\d+ of 1\.5, and about [\d.]+ is left"):
        training(epsilon=2, delta=1e-3, continue_from=before.promise(), budget_over_time={"epsilon": 1.5, "days": 2})
    for wrong in ({"epsilon": 8}, {"epsilon": 8, "days": 0}, {"epsilon": 8, "days": 9, "nights": 1}):
        with pytest.raises(UserError, match="give it an epsilon and days"):
            Privacy(budget_over_time=wrong)
