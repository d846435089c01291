"""Strategies in whole runs: what is paid, said, saved and taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from dp_accounting.pld import privacy_loss_distribution as pld

from dprec.data import Clicks, Sequences
from dprec.errors import UserError
from dprec.models import PCTR, DualEncoder
from dprec.sparsity import EANA, FEST, AdaFEST, ExponentialSelection, LazyDP, Strategy
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.tables import RowSpace, tables_of
from dprec.training.callback import Privacy
from tests.quiet import trainer
from tests.sparsity.support import Served, gaussian_cost, own_multiplier

pytestmark = pytest.mark.full

STEPS = 5


def clicks() -> Clicks:
    data = Clicks(dataset="synthetic", synthetic_records=700, table_scale=1e-3, batch_size=60)
    data.setup()
    return data


def model(data: Clicks, **options: Any) -> PCTR:
    torch.manual_seed(0)
    settings = {"hidden": [8], "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0} | options
    return PCTR(13, data.vocabularies, **settings)


def fit(
    sparsity: list[Strategy], data: Any = None, learner: Any = None, ckpt: Path | None = None, **options: Any
) -> Any:
    data = data or clicks()
    privacy = Privacy(**({"epsilon": 2.0} | options.pop("privacy", {})), sparsity=sparsity)
    run = trainer(privacy, *options.pop("callbacks", []), **{"max_steps": STEPS} | options)
    run.fit(learner or model(data), data, ckpt_path=ckpt, weights_only=True)
    return privacy, run


def independent(sigma: float, rate: float, delta: float, releases: list[float]) -> float:
    """ε by dp-accounting alone: a subsampled Gaussian, as often as there were steps, and the releases before."""
    grid = 1e-4
    step = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=grid)
    whole = step.self_compose(STEPS)
    for multiplier in releases:
        whole = whole.compose(pld.from_gaussian_mechanism(multiplier, value_discretization_interval=grid))
    return whole.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("name", ["adafest", "exponential", "fest", "fest gumbel", "adafest+", "two"])
def test_epsilon_is_that_of_an_independent_computation(name: str) -> None:
    """From the noise that was in fact drawn: of the choice, of the gradients and of the release."""
    strategies: dict[str, list[Strategy]] = {
        "adafest": [AdaFEST(threshold=3.0, noise_ratio=2.0)],
        "exponential": [ExponentialSelection(keep=5, noise_ratio=1.5)],
        "fest": [FEST(keep=20, share=0.1)],
        "fest gumbel": [FEST(keep=52, share=0.1, selection="gumbel")],
        "adafest+": [FEST(keep=20, share=0.1), AdaFEST(noise_ratio=3.0)],
        "two": [AdaFEST(tables="tables.tables.2.*", noise_ratio=2.0), ExponentialSelection(tables="tables.tables.3.*")],
    }
    privacy, trainer = fit(strategies[name])
    precision = own_multiplier(trainer) ** -2
    for strategy in strategies[name]:
        if isinstance(strategy, AdaFEST):
            precision += strategy.sigma**-2
        if isinstance(strategy, ExponentialSelection):
            precision += strategy.keep * gaussian_cost(strategy.epsilon_of_a_draw(strategy.sigma)) ** 2
    releases = [event.noise_multiplier for event in privacy.planned.releases.values()]
    assert len(releases) == ("fest" in name.split()[0] and name != "adafest")
    expected = independent(precision**-0.5, 60 / 600, privacy.delta, releases)
    assert privacy.spent == pytest.approx(expected, rel=2e-3)
    assert privacy.spent <= 2.0


def test_eana_says_that_it_is_not_private() -> None:
    privacy, _ = fit([EANA()], privacy={"epsilon": None, "noise_multiplier": 1.0})
    assert privacy.spent == float("inf")
    assert privacy.guarantee().startswith("not private: EANA")
    with pytest.raises(UserError, match="EANA adds noise to touched rows only.*give noise_multiplier alone"):
        Privacy(epsilon=3.0, sparsity=EANA())


def test_the_sentence_names_where_the_noise_goes() -> None:
    privacy, trainer = fit([FEST(keep=20, share=0.1), AdaFEST(noise_ratio=3.0)])
    told = privacy.guarantee()
    sigma = own_multiplier(trainer)
    assert "FEST: 20 rows chosen by the release; AdaFEST: rows chosen in each step" in told
    assert f"counts with noise multiplier {3 * sigma:.6g}; the gradients' own noise multiplier is {sigma:.6g}" in told


def test_rows_drawn_with_gumbel_noise_are_equally_many_of_each_table_and_the_sentence_says_so() -> None:
    fest = FEST(keep=52, share=0.1, selection="gumbel")
    privacy, _ = fit([fest])
    (event,) = privacy.planned.releases.values()
    told = privacy.guarantee()
    assert "draws by Gumbel noise, which tell no more than a Gaussian release of row counts of * with" in told
    assert f"multiplier {event.noise_multiplier:.6g}" in told
    assert "FEST: 52 rows chosen by Gumbel noise" in told
    assert [len(rows) for rows in fest.space.split(fest.choose(None, None)).values()] == [2] * 26
    again = FEST(keep=52, share=0.1, selection="gumbel")
    again.load_state_dict(fest.state_dict())
    again.begin(fest.space, 0.0, 0.0, fest.noise)
    assert again.choose(None, None).tolist() == fest.choose(None, None).tolist()


def test_gumbel_noise_draws_the_most_looked_up_rows_where_the_budget_is_large() -> None:
    fest = FEST(keep=26, share=0.5, selection="gumbel")
    privacy, _ = fit([fest], privacy={"epsilon": 1e5})
    exact = FEST(keep=26, share=0.5, per_table=True)
    fit([exact], privacy={"epsilon": 1e5})
    same = np.isin(fest.choose(None, None), exact.choose(None, None)).mean()
    assert privacy.spent <= 1e5
    assert same > 0.8


def test_look_ups_are_those_of_the_data() -> None:
    data = clicks()
    learner = model(data)
    trained = dict(learner.named_parameters())
    space = RowSpace(tables_of(learner, trained))
    counts = np.zeros(space.size)
    for portion in look_ups(space, learner.losses, trained, Served(data.training)):
        np.add.at(counts, portion.keys, portion.values)
    batch = data.training.log.read(np.arange(600))
    for feature, name in enumerate(space.tables):
        rows = space.flat(name, batch.categories[:, feature, 0] + 1).numpy()
        exact = np.bincount(rows, minlength=space.size)
        assert exact[exact > 0].tolist() == counts[exact > 0].tolist()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8, "weight_decay": 0.01}])
def test_checkpoints_and_evaluation_of_lazydp_owe_nothing(options: dict[str, float], tmp_path: Path) -> None:
    seen: list[bool] = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "now.ckpt")
            saved = torch.load(tmp_path / "now.ckpt", weights_only=True)["state_dict"]
            seen.append(all((saved[name] != start[name])[1:].any(1).all() for name in start))

        def on_validation_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
            now = dict(module.named_parameters())
            if not trainer.sanity_checking:
                seen.append(all((now[name] != start[name])[1:].any(1).all() for name in start))

    data = clicks()
    learner = model(data, **options)
    start = {name: p.detach().clone() for name, p in learner.named_parameters() if name.startswith("tables.")}
    fit(
        [LazyDP(aggregate=not options)],
        data,
        learner,
        callbacks=[Look()],
        limit_val_batches=1,
        val_check_interval=2,
        check_val_every_n_epoch=1,
    )
    assert len(seen) > STEPS
    assert all(seen)
    assert all((p.detach() != start[name])[1:].any(1).all() for name, p in learner.named_parameters() if name in start)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [FEST(keep=20, share=0.1), AdaFEST(threshold=1.0)],
        lambda: [LazyDP(aggregate=False)],
    ],
)
def test_a_resumed_run_goes_on_with_what_was_chosen(make: Any, tmp_path: Path) -> None:
    data, path, again, kept = clicks(), tmp_path / "half.ckpt", make(), {}
    momentum = 0.5 if len(again) == 1 else 0.0

    class SaveHalf(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                trainer.save_checkpoint(path)
                kept.update(_copied(trainer.callbacks[0].strategies.state_dict()[0]))  # type: ignore[attr-defined]

    class LookAtStart(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                now = trainer.callbacks[0].strategies.state_dict()[0]  # type: ignore[attr-defined]
                assert kept
                assert kept.keys() == now.keys()
                assert all(torch.equal(kept[key], now[key]) for key in kept)

    first, _ = fit(make(), data, model(data, momentum=momentum), callbacks=[SaveHalf()])
    privacy, trainer = fit(again, data, model(data, momentum=momentum), ckpt=path, callbacks=[LookAtStart()])
    assert trainer.global_step == STEPS
    assert privacy.spent == first.spent
    assert again[0].settings() == first.strategies.in_order[0].settings()
    other = [FEST(keep=21, share=0.1), AdaFEST()] if len(again) == 2 else [LazyDP()]
    with pytest.raises(UserError, match="cannot resume: sparsity was"):
        fit(other, data, model(data), ckpt=path, max_steps=2 * STEPS)


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


def test_averaged_weights_and_owed_noise_do_not_go_together() -> None:
    from pytorch_lightning.callbacks import EMAWeightAveraging, StochasticWeightAveraging

    for averaging in (EMAWeightAveraging(decay=0.9), StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)):
        with pytest.raises(UserError, match="averaged weights would hold rows that still owe noise"):
            fit([LazyDP()], callbacks=[averaging], max_epochs=9)


def test_shared_negatives_leave_a_sequence_model_sparse() -> None:
    data = Sequences(
        dataset="synthetic", synthetic_users=60, synthetic_items=200, batch_size=12, max_length=9, min_events=0
    )
    data.setup()
    learner = DualEncoder(data.items, dim=8, max_length=9, negatives=7, weight_decay=0.0)
    privacy, _ = fit([AdaFEST(threshold=2.0)], data, learner)
    assert 7 <= privacy.strategies.report()["rows_noised"] < 250
    whole = DualEncoder(data.items, dim=8, max_length=9, weight_decay=0.0)
    with pytest.raises(UserError, match=r"table 'embedding\.weight' is used as a whole"):
        fit([AdaFEST(threshold=2.0)], data, whole)
