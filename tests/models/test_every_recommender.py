"""What all models of sequences have in common: no position sees what comes later, and padding changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dprec.data import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.models import GRU, LSTM, DPFormer, DualEncoder, Transformer
from tests.zoo import tagged
from tests.zoo.recommenders import ITEMS, MODELS, batch_of

NAMES = [*tagged("ranks")]


def model_of(name: str) -> Any:
    return MODELS[name]().double().eval()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uneven-use"])  # which reads the first position
def test_a_position_sees_only_what_came_before(name: str) -> None:
    model, history = model_of(name), torch.randint(1, ITEMS, (3, 8))
    changed = history.clone()
    changed[:, 5:] = torch.randint(1, ITEMS, (3, 3))
    before, after = (model.encode(each) for each in (history, changed))
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-12)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    model, batch = model_of(name), batch_of(6)
    short = SequenceBatch(batch.history[:, :6], batch.targets[:, :6])
    padded = SequenceBatch(*(F.pad(each, (0, 3)) for each in (short.history, short.targets)))
    assert torch.allclose(model.losses(short), model.losses(padded), atol=1e-10)
    one, other = (RankingBatch(each.history, short.targets[:, 0], short.history) for each in (short, padded))
    assert torch.allclose(model.scores(one), model.scores(other), atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *(
            (Transformer, wrong)
            for wrong in (
                *({"dim": -4}, {"dim": 65, "heads": 2}, {"heads": 0}, {"dropout": 7.0}, {"learning_rate": -1.0}),
                *({"learning_rate": float("nan")}, {"weight_decay": -1.0}, {"warmup": 2.0}, {"norm": "middle"}),
                *({"activation": "tanh"}, {"max_length": 0}, {"feedforward": 0}, {"network_scale": 0.0}),
                *({"network_scale": 1e300}, {"start_mean": 0.0}, {"start_mean": float("inf")}, {"fade": 0.0}),
                {"fade": 1.1},
            )
        ),
        *((DPFormer, wrong) for wrong in ({"frequencies": "guess"}, {"frequency_share": 1.0}, {"error_scale": -1.0})),
        *(
            (DualEncoder, wrong)
            for wrong in (
                *({"tower": "gru"}, {"context": 0}, {"feedforward": 0}, {"blocks": -1}, {"heads": 5}),
                {"dropout": 1.0},
            )
        ),
        *(
            (kind, wrong)
            for kind in (GRU, LSTM)
            for wrong in (
                *({"dim": 0}, {"layers": 0}, {"dropout": 1.0}, {"dropout": -0.1}, {"shortcut_mean": -0.1}),
                *({"shortcut_mean": float("inf")}, {"network_scale": 0.5}, {"fade": 0.5}),
                *({"network_scale": 2.0, "shortcut_mean": 0.3}, {"network_scale": 0.0, "shortcut_mean": 0.3}),
                {"fade": 0.0, "shortcut_mean": 0.3},
            )
        ),
    ],
)
def test_arguments_that_make_no_model_are_refused_in_one_line(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"model\.({'|'.join(wrong)})"):
        kind(ITEMS, **wrong)
