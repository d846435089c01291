"""Bias-reduced descent: it learns, keeps its budget, and does as scikit-learn's estimators do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprec.convex import BiasReducedSGD, sgd
from dprec.convex.debiasing import Boosting, score_of
from dprec.convex.estimator import Logistic, Sigmoid, risk
from dprec.convex.mean import gaussian_multiplier
from dprec.convex.mechanisms import draws
from dprec.convex.sgd import Descent
from dprec.errors import UserError
from tests.convex.support import one_hot, sparse_rows

EASY = {"epsilon": 300.0, "delta": 1e-5, "sparsity": 2, "step_epsilon": 400.0, "max_steps": 150, "seed": 0}


def easy(n: int = 2_000) -> tuple[object, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = one_hot(rng, n, 8, 2)
    clicked = rows @ np.array([3.0, -3, 2, -2, 3, -3, 2, -2]) + 0.3 * rng.standard_normal(n) > 0
    return rows, clicked.astype(float)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("loss", "change", "best"),
    [
        ("logistic", {"scale": 5.0}, 0.6),
        ("sigmoid", {"learning_rate": 1.0, "scale": 5.0}, 0.45),
        ("squared", {"radius": 2.0, "learning_rate": 0.3}, 0.2),
    ],
)
def test_it_learns_where_the_budget_is_generous(loss: str, change: dict, best: float) -> None:
    """On average: a run's own draws of levels and noise move it."""
    rows, targets = easy()
    models = [BiasReducedSGD(loss=loss, **{**EASY, "seed": seed}, **change).fit(rows, targets) for seed in range(12)]
    value = models[0]._loss()
    assert np.mean([risk(rows, targets, value, model.coef_) for model in models]) < best < value.at_zero
    assert all(model.ledger_.epsilon(1e-5) <= 300 for model in models)


def test_every_call_gets_a_quarter_of_a_step() -> None:
    rows, targets = easy(256)
    for change, share in (({"step_epsilon": 0.4}, 0.4), ({"stopping": "filter"}, 1 / 8)):
        model = BiasReducedSGD(epsilon=1.0, delta=1e-4, sparsity=2, max_steps=40, seed=0, **change).fit(rows, targets)
        multiplier = gaussian_multiplier(share / 4, 1e-4 / 4 / 4)
        found = {event.noise_multiplier for event in model.ledger_.events}
        assert found == {multiplier, multiplier / math.sqrt(2)}


def test_noise_is_that_of_the_batch_and_no_two_calls_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.zeros((64, 4_000))
    rows[:, 0] = 1.0
    monkeypatch.setattr("dprec.convex.mechanisms.project_l1", lambda vector, radius: vector)
    model = BiasReducedSGD(epsilon=100.0, delta=1e-4, sparsity=1, step_epsilon=20.0, max_steps=1, seed=0)
    data = sgd.bounded_rows(rows, 1.0, 1), np.zeros(64), Logistic()
    descent = Descent(model, *data, 100.0, 1e-4, sgd.VectorNoise(0), draws(0))
    multiplier = gaussian_multiplier(5.0, 1e-4 / 16)
    outputs = [descent._mean(np.zeros(4_000), np.arange(size))[1:] for size in (4, 16, 16)]
    for size, noise in zip((4, 16, 16), outputs, strict=True):
        assert noise.std() == pytest.approx(2 * multiplier / size, rel=0.05)
    assert abs(np.corrcoef(outputs[1], outputs[2])[0, 1]) < 0.1


def test_a_fresh_run_is_private_and_never_the_same() -> None:
    rows, targets = easy(128)
    model = BiasReducedSGD(epsilon=1.0, delta=1e-4, sparsity=2, max_steps=5, step_epsilon=0.05)
    first, promise = model.fit(rows, targets).coef_, model.guarantee_
    assert promise.startswith("(")
    assert "replacing one record" in promise
    assert (first != model.fit(rows, targets).coef_).any()
    same = [
        BiasReducedSGD(epsilon=1.0, delta=1e-4, max_steps=5, step_epsilon=0.05, seed=4).fit(rows, targets)
        for _ in range(2)
    ]
    assert (same[0].coef_ == same[1].coef_).all()
    assert same[0].guarantee_.startswith("not private")


def test_boosting_spends_what_the_theorem_allows() -> None:
    for epsilon, delta, failure in ((1.0, 1e-6, 0.1), (0.5, 1e-9, 0.9), (8.0, 1e-3, 0.01)):
        boosting = Boosting(epsilon, delta, failure)
        each, small = 2 * boosting.epsilon_each, boosting.delta_each  # a run and its score
        assert boosting.coin == min(1 / 2, 3 * failure / 4)
        assert boosting.most >= math.log(2 / delta) / boosting.coin
        assert 3 * each + 3 * math.sqrt(2 * small) <= epsilon
        assert math.sqrt(2 * small) * boosting.most + delta / 2 <= delta


def test_a_score_moves_by_no_more_than_its_noise_is_for() -> None:
    rng = np.random.default_rng(0)
    for loss in (Logistic(), Sigmoid()):
        for _ in range(50):
            rows, targets = sparse_rows(rng, 5, 6, 2), rng.integers(2, size=5) * 1.0
            weights = rng.standard_normal(6)
            weights *= 2.0 / np.linalg.norm(weights)
            score, move = score_of(weights, rows, targets, loss, 2.0, loss.steepness(2.0))
            swapped = rows.tolil()
            swapped[[0]] = -rows[[0]]
            targets[0] = rng.integers(2)
            assert abs(score - score_of(weights, swapped.tocsr(), targets, loss, 2.0, 1.0)[0]) <= move


def test_the_best_run_is_chosen() -> None:
    boosting = Boosting(1e6, 1e-6, 0.5)  # hardly any noise in the scores
    rows, targets = easy(200)
    made: list[np.ndarray] = []

    def run() -> np.ndarray:
        made.append(np.full(8, float(len(made))))
        return made[-1]

    best = boosting.choose(run, rows, targets, Logistic(), 20.0, 1.0, sgd.VectorNoise(0), np.random.default_rng(3))
    risks = [risk(rows, targets, Logistic(), weights) for weights in made]
    assert best[0] == np.argmin(risks)


def test_the_number_of_runs_is_not_told() -> None:
    """It would tell how bad the worst run was: the theorem is about the best run alone."""
    rows, targets = easy(64)
    model = BiasReducedSGD(epsilon=6.0, delta=1e-4, sparsity=2, failure=0.5, radius=1.0, max_steps=1).fit(rows, targets)
    learnt = {name for name in vars(model) if name.endswith("_")}
    assert learnt == {"classes_", "coef_", "guarantee_", "ledger_", "n_features_in_"}


def test_a_boosted_model_costs_its_whole_budget_once() -> None:
    rows, targets = easy(256)
    model = BiasReducedSGD(epsilon=6.0, delta=1e-4, sparsity=2, failure=0.5, radius=1.0, max_steps=2)
    model.fit(rows, targets)
    assert model.ledger_.epsilon(1e-4) == pytest.approx(6.0)
    assert model.ledger_.epsilon(0.9e-4) == math.inf
    assert "(6, 0.0001)" in model.guarantee_
    assert np.isfinite(BiasReducedSGD(failure=0.9, loss="sigmoid", max_steps=2).fit(rows, targets).coef_).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"loss": "hinge"}, "give one of logistic, squared, sigmoid"),
        ({"loss": "squared"}, "give radius"),
        ({"failure": 0.1}, "give radius"),
        ({"failure": 2.0, "radius": 1.0}, "failure is 2.0"),
        ({"failure": 0.1, "radius": 1.0, "delta": 0.5}, "at most epsilon / 10"),
        ({"estimator": "median"}, "estimator is 'median'"),
        ({"stopping": "never"}, "stopping is 'never'"),
        ({"stopping": "filter", "step_epsilon": 2.0}, "at most 1"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"step_epsilon": 900.0}, "lower step_epsilon"),
    ],
)
def test_mistakes_cost_one_line(change: dict, says: str) -> None:
    with pytest.raises(UserError) as error:
        BiasReducedSGD(**change).fit(np.eye(4), [0, 1, 0, 1])
    assert says in str(error.value)
