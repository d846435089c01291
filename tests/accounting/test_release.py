"""One-shot sums: what a user can change, what they cost, and that they are asked for once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import pytorch_lightning as pl
from dp_accounting import pld
from hypothesis import given
from hypothesis import strategies as st

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.release import ExactSums, NoisySums, Portion, Release, release_events, unit_sum
from dprec.errors import UserError
from dprec.models import Spectral
from dprec.noise.gaussian import GaussianNoise
from dprec.training.callback import Privacy
from tests.privacy.support import BATCH, USERS, data, fit, trainer

entries = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 5), st.floats(-1e3, 1e3) | st.sampled_from([1e200, math.nan, math.inf])
    ),
    max_size=20,
)


def portion(rows: list[tuple[int, int, float]]) -> Portion:
    users, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return Portion(np.array(users, dtype=np.int64), np.array(keys, dtype=np.int64), np.array(values, dtype=float))


@given(entries)
def test_no_user_moves_the_sum_by_more_than_one(rows: list[tuple[int, int, float]]) -> None:
    whole = unit_sum(6, 4, [portion(rows)])
    assert np.isfinite(whole).all()
    for user in range(4):
        without = unit_sum(6, 4, [portion([row for row in rows if row[0] != user])])
        assert np.linalg.norm(whole - without) <= 1 + 1e-12


def test_the_sum_is_that_of_the_dense_vectors() -> None:
    rng = np.random.default_rng(0)
    users, keys, values = rng.integers(0, 7, 300), rng.integers(0, 11, 300), rng.standard_normal(300)
    dense = np.zeros((7, 11))
    np.add.at(dense, (users, keys), values)
    exact = (dense / np.linalg.norm(dense, axis=1, keepdims=True)).sum(0)
    parts = [Portion(users[own], keys[own], values[own]) for own in (users < 3, users >= 3)]
    assert np.allclose(unit_sum(11, 7, parts), exact, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[(1, 0, 1.0)], [(1, 2, 1.0)]], "user 1 is in two portions"),
        ([[(-1, 0, 1.0)]], r"users outside 0\.\.3"),  # the last user a second time
        ([[(4, 0, 1.0)]], r"users outside 0\.\.3"),
        ([[(1, 6, 1.0)]], r"places outside 0\.\.5"),  # the next user's
        ([[(1, -1, 1.0)]], r"places outside 0\.\.5"),
    ],
)
def test_what_would_count_as_another_users_is_refused(rows: list[list[tuple[int, int, float]]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unit_sum(6, 4, map(portion, rows))


def test_shares_of_the_whole_budget_spend_it_and_no_more() -> None:
    releases = [Release("a", 0.2), Release("b", 0.5), Release("c", 0.3)]
    ledger = Ledger()
    for event in release_events(PrivacyBudget(2.0, 1e-4), releases).values():
        ledger.record(event)
    assert 1.99 < ledger.epsilon(1e-4) <= 2.0
    with pytest.raises(UserError, match="releases take 1.1 of the budget"):
        release_events(PrivacyBudget(2.0, 1e-4), [*releases, Release("d", 0.1)])


def test_noise_has_the_planned_size_and_is_on_record_first() -> None:
    release, book = Release("counts", 0.5), []
    sums = NoisySums({release: Event("gaussian", 3.0, what="counts")}, GaussianNoise(), book.append)

    def portions() -> Any:
        assert book == [Event("gaussian", 3.0, what="counts")]
        yield portion([])

    found = sums(release, 100_000, 4, portions())
    assert found.std() == pytest.approx(3.0, rel=0.02)
    with pytest.raises(UserError, match="paid for once"):
        sums(release, 10, 4, [])
    with pytest.raises(UserError, match="was not planned"):
        sums(Release("more", 0.5), 10, 4, [])


class Asking(Spectral):
    """Counts how often it is prepared."""

    prepared = 0

    def prepare(self, data: Any, sums: ExactSums) -> None:
        type(self).prepared += 1
        super().prepare(data, sums)


def spectral(**options: Any) -> Asking:
    return Asking(data().items, top=8, rank=4, recent=3, max_length=9, **options)


@pytest.mark.full
def test_a_run_with_releases_spends_what_an_independent_accountant_says() -> None:
    privacy = Privacy(epsilon=3.0, delta=1e-3)
    fit(privacy, recommender=spectral())
    first, second, training = privacy.ledger.events
    assert [event.what for event in (first, second, training)] == ["item frequencies", "items met together", "training"]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for event in (first, second):
        accountant.compose(dp_accounting.GaussianDpEvent(event.noise_multiplier))
    step = dp_accounting.PoissonSampledDpEvent(BATCH / USERS, dp_accounting.GaussianDpEvent(privacy.sigma))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, 6))
    assert privacy.spent == pytest.approx(accountant.get_epsilon(1e-3), abs=5e-3)
    assert 2.95 < privacy.spent <= 3.0
    assert privacy.spent == privacy.epsilon_after(6)
    assert "a Gaussian release of items met together with multiplier" in privacy.guarantee()


def test_a_resumed_run_does_not_look_again(tmp_path: Path) -> None:
    def privacy() -> Privacy:
        return Privacy(epsilon=8.0, noise_multiplier=4.0, delta=1e-3)

    Asking.prepared = 0
    first, half = privacy(), tmp_path / "half.ckpt"
    fit(first, recommender=spectral(), max_steps=3).save_checkpoint(half)
    again, model = privacy(), spectral()
    fit(again, recommender=model, ckpt=half, max_steps=6)
    assert again.steps == 6
    assert Asking.prepared == 1
    assert [*again.ledger.events.values()] == [1, 1, 6]
    assert model.described.vectors.abs().sum() > 0
    with pytest.raises(UserError, match="cannot resume: releases was"):
        fit(privacy(), recommender=spectral(pair_share=0.5), ckpt=half, max_steps=6)


class SaveBeforeTheFirstStep(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 0:
            trainer.save_checkpoint(self.path)


@pytest.mark.full
def test_releases_that_are_drawn_anew_are_paid_anew(tmp_path: Path) -> None:
    path = tmp_path / "zero.ckpt"
    run = trainer(Privacy(epsilon=3.0, delta=1e-3))
    run.callbacks.append(SaveBeforeTheFirstStep(path))  # type: ignore[attr-defined]
    run.fit(spectral(), data())
    again = Privacy(epsilon=3.0, delta=1e-3)
    with pytest.raises(UserError, match="does not pay for one step"):
        fit(again, recommender=spectral(), ckpt=path)


class AsksUnplanned(Spectral):
    """Looks at the data without saying so in `releases`."""

    @property
    def releases(self) -> tuple[Release, ...]:
        return ()

    def on_train_start(self) -> None:
        super().on_train_start()
        self.prepare(data(), self.terms.sums)


def test_exact_sums_are_never_given_to_a_private_run() -> None:
    with pytest.raises(UserError, match="was not planned"):
        fit(Privacy(noise_multiplier=1.0, delta=1e-3), recommender=AsksUnplanned(data().items, top=8, max_length=9))


def test_releases_need_an_epsilon_to_take_a_share_of() -> None:
    with pytest.raises(UserError, match="give privacy.epsilon"):
        fit(Privacy(noise_multiplier=1.0, delta=1e-3), recommender=spectral())


def test_a_model_that_looks_needs_a_datamodule() -> None:
    module = data()
    run = pl.Trainer(max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(UserError, match="fit it with a datamodule"):
        run.fit(spectral(), module.train_dataloader())
