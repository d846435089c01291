"""Output perturbation: what one record moves, what the solver leaves, the noise, and how the risk falls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize

from dprec.convex import OutputPerturbation
from dprec.convex.estimator import Logistic, Loss, Sigmoid, Squared, gradient, minimum, risk
from dprec.convex.mean import gaussian_multiplier
from dprec.convex.measurements import bounded_rows
from dprec.convex.output_perturbation import NoiseLaw
from dprec.errors import UserError
from tests.convex.support import one_hot, sparse_rows


def solved(rows: object, targets: np.ndarray, loss: Loss, value: float) -> np.ndarray:
    """The minimum by another solver, to many digits."""
    narrow = bounded_rows(rows, 1.0, 10**6)

    def both(w: np.ndarray) -> tuple[float, np.ndarray]:
        return risk(narrow, targets, loss, w) + value / 2 * w @ w, gradient(narrow, targets, loss, w) + value * w

    options = {"gtol": 1e-13, "ftol": 1e-18, "maxiter": 5000}
    return minimize(both, np.zeros(narrow.shape[1]), jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("loss", [Logistic(), Squared(2.0), Sigmoid()])
def test_slopes_and_constants_are_those_of_the_value(loss: Loss) -> None:
    for target in (0.0, 1.0):
        targets = np.array([target])
        assert check_grad(lambda s, t=targets: loss.value(s, t)[0], lambda s, t=targets: loss.slope(s, t), [0.7]) < 1e-6
        scores = np.linspace(-6, 6, 4001)
        slopes = loss.slope(scores, np.full_like(scores, target))
        assert np.abs(slopes).max() <= loss.steepness(6.0)
        assert np.abs(np.diff(slopes) / np.diff(scores)).max() <= loss.bend * (1 + 1e-6)
        assert loss.value(scores, np.full_like(scores, target)).max() <= loss.largest(6.0) * (1 + 1e-12)
        assert loss.value(np.zeros(1), targets)[0] <= loss.at_zero
        if loss.convex:
            middle = (scores[1:] + scores[:-1]) / 2
            assert np.allclose(loss.curvature(middle), np.diff(slopes) / np.diff(scores), atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["logistic", "squared"]), st.floats(0.01, 2.0), st.integers(0, 2**32 - 1))
def test_one_record_moves_the_minimum_by_no_more_than_the_noise_is_for(name: str, value: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d, s = 5, 6, 2
    loss = Logistic() if name == "logistic" else Squared(1.0)
    rows, other = sparse_rows(rng, n, d, s), sparse_rows(rng, n, d, s)
    targets = rng.integers(2, size=n) * 1.0
    others = targets.copy()
    others[0] = 1 - targets[0]
    swapped = rows.tolil()
    swapped[[0]] = -rows[[0]] if seed % 2 else other[[0]]
    for delta, order in ((1e-6, 2), (0.0, 1)):
        law = NoiseLaw(OutputPerturbation(delta=delta, sparsity=s, tolerance=0.3), loss, n, d)
        left = law.residual(value)
        found = [
            minimum(bounded_rows(r, 1.0, s), t, loss, value, left, order).weights
            for r, t in ((rows, targets), (swapped, others))
        ]
        assert np.linalg.norm(found[0] - found[1], ord=order) <= law.move(value)
        assert max(map(np.linalg.norm, found)) <= law.radius(value)


@pytest.mark.parametrize("order", [1, 2])
def test_the_residual_certifies_the_distance(order: int) -> None:
    rng = np.random.default_rng(0)
    rows, targets = one_hot(rng, 300, 40, 4), rng.integers(2, size=300) * 1.0
    exact = solved(rows, targets, Logistic(), 0.01)
    for left in (1e-2, 1e-4, 1e-6):
        found = minimum(rows, targets, Logistic(), 0.01, left, order)
        assert np.linalg.norm(found.residual, ord=order) <= left
        again = gradient(rows, targets, Logistic(), found.weights) + 0.01 * found.weights
        assert found.residual == pytest.approx(again, abs=1e-12)
        assert np.linalg.norm(found.weights - exact) <= np.linalg.norm(found.residual) / 0.01 + 1e-8


def test_a_minimum_that_is_not_reached_is_refused() -> None:
    rng = np.random.default_rng(2)
    rows, targets = one_hot(rng, 200, 40, 4), rng.integers(2, size=200) * 1.0
    with pytest.raises(UserError, match="raise regularization or tolerance"):
        minimum(rows, targets, Logistic(), 1e-6, 1e-19, 2)


@pytest.mark.parametrize(("delta", "spread"), [(1e-6, 1.0), (0.0, math.sqrt(2))])
def test_the_noise_is_the_promised_one(delta: float, spread: float) -> None:
    n, d, value, tolerance = 100, 50_000, 0.5, 0.01
    rows = np.zeros((n, d))
    rows[:, 0] = 1.0
    model = OutputPerturbation(1.0, delta, sparsity=4, regularization=value, seed=0).fit(rows, np.ones(n))
    move = 2 / (value * n) * (1 + tolerance)
    expected = gaussian_multiplier(1.0, 1e-6) * move if delta else 2 * move * (1 + 0.25 / value)
    assert model.noise_scale_ == pytest.approx(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprec.convex.output_perturbation.project_linf", lambda vector, radius: vector)
        drawn = model.fit(rows, np.ones(n)).coef_[1:]
    assert drawn.std() == pytest.approx(expected * spread, rel=0.02)


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_weights_are_within_twice_the_largest_noise(delta: float) -> None:
    rng = np.random.default_rng(3)
    rows, targets = one_hot(rng, 400, 60, 3), rng.integers(2, size=400) * 1.0
    for seed in range(10):
        model = OutputPerturbation(0.3, delta, 3, regularization=0.02, seed=seed)
        found = model.fit(rows, targets).coef_
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dprec.convex.output_perturbation.project_linf", lambda vector, radius: vector)
            noisy = model.fit(rows, targets).coef_
        exact = minimum(rows, targets, Logistic(), 0.02, 0.01 / 400, 1 if delta == 0 else 2).weights
        assert np.abs(found - exact).max() <= 2 * np.abs(noisy - exact).max() * (1 + 1e-2)
        assert np.linalg.norm(found) <= math.sqrt(2 * math.log(2) / 0.02) * (1 + 1e-12)


def test_it_predicts_and_says_what_it_guarantees() -> None:
    rng = np.random.default_rng(5)
    rows = one_hot(rng, 20_000, 12, 3)
    clicked = rng.random(20_000) < 1 / (1 + np.exp(-4 * (rows @ rng.standard_normal(12))))
    model = OutputPerturbation(2.0, 1e-6, 3, regularization=0.003).fit(rows, clicked)
    chances = model.predict_proba(rows)
    assert chances.shape == (20_000, 2)
    assert np.allclose(chances.sum(axis=1), 1)
    assert ((chances[:, 1] > 0.5) == (model.predict(rows) == model.classes_[1])).all()
    assert (model.predict(rows) == clicked).mean() > max(clicked.mean(), 1 - clicked.mean()) + 0.05
    assert model.guarantee_.startswith("(2, 1e-06)-differential privacy per record")
    assert model.set_params(seed=1).fit(rows, clicked).guarantee_.startswith("not private")
    assert model.ledger_.epsilon(1e-6) <= 2.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"loss": "hinge"}, "loss is 'hinge': give one of logistic, squared"),
        ({"loss": "sigmoid"}, "loss is 'sigmoid', which is not convex: give logistic or squared"),
        ({"regularization": 0.0}, "regularization is 0.0"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"tolerance": math.inf}, "tolerance is inf"),
        ({"tolerance": 1e300}, "tolerance is 1e+300: give a number above 0 and below 1e30"),
        ({"epsilon": "1"}, "epsilon is '1': give a number"),
        ({"sparsity": "3"}, "sparsity is '3': give a whole number"),
        ({"regularization": "0.1"}, "regularization is '0.1': give a number"),
        ({"target_bound": 0.0}, "target_bound is 0.0"),
    ],
)
def test_mistakes_cost_one_line(change: dict, says: str) -> None:
    with pytest.raises(UserError) as error:
        OutputPerturbation(**change).fit(np.eye(3), [0, 1, 0])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("targets", "says"), [([0, 1], "3 records and targets"), ([0, 1, 2], "0 and 1"), (["a"] * 3, "not numbers")]
)
def test_targets_that_do_not_fit_are_refused(targets: list, says: str) -> None:
    with pytest.raises(UserError, match=says):
        OutputPerturbation().fit(np.eye(3), targets)
