"""How long a run is follows one rule, whatever drives it."""

from types import SimpleNamespace
from typing import Any

import pytest

from dprec.data import PoissonBatches
from dprec.data.draws.length import planned_steps, steps_of
from dprec.errors import UserError

DRAWS = PoissonBatches(users=100, expected_batch=8)


def trainer(steps: int, epochs: int | None, **options: Any) -> Any:
    usual = {"datamodule": None, "train_dataloader": SimpleNamespace(batch_sampler=DRAWS), "limit_train_batches": 1.0}
    return SimpleNamespace(max_steps=steps, max_epochs=epochs, estimated_stepping_batches=26, **usual | options)


@pytest.mark.parametrize(
    ("steps", "epochs", "expected"), [(-1, 2, 25), (7, 2, 7), (70, 2, 25), (7, None, 7), (7, -1, 7), (-1, 0, 1)]
)
def test_the_fewer_steps_count_where_both_are_given(steps: int, epochs: int | None, expected: int) -> None:
    assert planned_steps(steps, epochs, DRAWS) == expected
    assert steps_of(trainer(steps, epochs)) == expected
    own = SimpleNamespace(batches=DRAWS)
    assert steps_of(trainer(steps, epochs, datamodule=own, train_dataloader=None)) == expected


def test_a_schedule_that_asks_before_there_is_a_loader_gets_the_same_length() -> None:
    early = trainer(-1, 2, train_dataloader=None)

    def setup_data() -> None:
        early.train_dataloader = SimpleNamespace(batch_sampler=DRAWS)

    early.fit_loop = SimpleNamespace(setup_data=setup_data)
    assert steps_of(early) == 25


def test_lightning_counts_where_nobody_knows_the_draws() -> None:
    assert steps_of(trainer(-1, 2, train_dataloader=SimpleNamespace(batch_sampler=None))) == 26


def test_a_run_without_a_length_is_refused() -> None:
    with pytest.raises(UserError, match="length of training is not given: set trainer.max_epochs or"):
        planned_steps(-1, None, DRAWS)
