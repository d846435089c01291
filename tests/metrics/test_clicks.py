"""AUC against ranks, pairs and torchmetrics' exact curve; log loss and entropy against their formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from torchmetrics.functional.classification import binary_auroc

from dprec.errors import UserError
from dprec.metrics import ClickMetrics


def measured(logits, clicked, pieces=1):
    metrics = ClickMetrics()
    for piece in torch.arange(len(logits)).chunk(pieces):
        metrics.update(logits[piece], clicked[piece])
    return {name: float(value) for name, value in metrics.compute().items()}


def mann_whitney(logits, clicked):
    clicks = clicked.numpy() == 1
    ranks = rankdata(logits.numpy())  # ties share the mean of their ranks
    positive, negative = clicks.sum(), (~clicks).sum()
    return (ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * negative)


value = st.sampled_from([-3000.0, -5.0, -1.0, -1e-3, -0.0, 0.0, 1e-3, 0.5, 0.5002, 5.0])  # few values: many ties


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(value, st.integers(0, 1)), min_size=2, max_size=30))
def test_auc_counts_pairs_and_halves_ties(records):
    logits, clicked = torch.tensor([r[0] for r in records]), torch.tensor([float(r[1]) for r in records])
    pairs = [(a > b) + (a == b) / 2 for a, one in records for b, other in records if one and not other]
    auc = measured(logits, clicked)["auc"]
    assert auc == pytest.approx(sum(pairs) / len(pairs), abs=1e-12) if pairs else math.isnan(auc)


def example(records=20_000, seed=0, scale=1.5, level=-1.1):
    generator = torch.Generator().manual_seed(seed)
    logits = level + scale * torch.randn(records, generator=generator)
    clicked = (torch.rand(records, generator=generator) < torch.sigmoid(logits)).float()
    return logits, clicked


@pytest.mark.parametrize(("scale", "level"), [(1.5, -1.1), (1e-2, -1.1), (1e-3, 0.0), (40.0, 3.0)])
def test_auc_is_the_mann_whitney_statistic(scale, level):
    logits, clicked = example(scale=scale, level=level)
    auc = measured(logits, clicked)["auc"]
    assert auc == pytest.approx(mann_whitney(logits, clicked), abs=2e-5)
    # torchmetrics goes by probabilities: large logits would be ties to it
    if scale < 10:
        assert auc == pytest.approx(float(binary_auroc(logits.double(), clicked.long())), abs=2e-5)


def test_log_loss_and_normalised_entropy():
    logits, clicked = (tensor.double().numpy() for tensor in example(3000))
    chance = 1 / (1 + np.exp(-logits))
    loss = -np.mean(np.where(clicked == 1, np.log(chance), np.log(1 - chance)))
    rate = clicked.mean()
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    result = measured(*example(3000), pieces=4)
    assert result["log_loss"] == pytest.approx(loss, rel=1e-9)
    assert result["normalised_entropy"] == pytest.approx(loss / entropy, rel=1e-9)


def test_large_logits_keep_a_finite_loss():
    result = measured(torch.tensor([1e4, -1e4, 1e4]), torch.tensor([1.0, 0.0, 0.0]))
    assert result["log_loss"] == pytest.approx(1e4 / 3)
    assert result["auc"] == 0.75


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_a_loss_and_no_auc(label):
    result = measured(torch.tensor([0.3, -0.2]), torch.full((2,), label))
    assert math.isnan(result["auc"])
    assert math.isnan(result["normalised_entropy"])
    assert math.isfinite(result["log_loss"])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_cannot_be_ranked_is_refused(wrong):
    with pytest.raises(UserError, match="NaN or infinite for 1 of 2 records"):
        ClickMetrics().update(torch.tensor([0.1, wrong]), torch.tensor([0.0, 1.0]))


def test_labels_are_0_or_1():
    with pytest.raises(UserError, match="other than 0 and 1"):
        ClickMetrics().update(torch.tensor([0.1, 0.2]), torch.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="want"):
        ClickMetrics().update(torch.tensor([0.1, 0.2]), torch.tensor([[0.0], [1.0]]))
