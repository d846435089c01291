"""What code of one's own takes out of tensors for Python carries nothing from one user to another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprec.errors import NoRule
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping, record
from tests.one_micro_batch import add_clipped

USERS = 6
Scale = Callable[[Tensor], float]
READS: dict[str, Scale] = {
    "float": lambda y: float(y.abs().max()),
    "item": lambda y: y.abs().max().item(),
    "int": lambda y: int(y.abs().max()) + 1,
    "index": lambda y: range(9)[y.abs().max().long().clamp(max=7)] + 1,
    "bool": lambda y: 0.01 if bool(y.abs().max() > 3) else 1.0,
    "a condition": lambda y: 0.01 if (y.abs() > 3).any() else 1.0,
    "tolist": lambda y: max(map(abs, y.flatten().tolist())),
    "numpy": lambda y: float(np.abs(y.detach().numpy()).max()),
    "asarray": lambda y: float(np.asarray(y.detach()).max()),
    "from_dlpack": lambda y: float(np.from_dlpack(y.detach()).max()),
    "storage": lambda y: float(y.detach().untyped_storage().nbytes() and y.detach().storage()[0]),
    "equal": lambda y: 0.5 if torch.equal(y, y.clamp(-3, 3)) else 1.0,
    "allclose": lambda y: 0.5 if torch.allclose(y, y.clamp(-3, 3)) else 1.0,
    "in": lambda y: 0.01 if True in (y.abs() > 9) else 1.0,
    "is_nonzero": lambda y: 0.01 if (y.abs() > 9).any().is_nonzero() else 1.0,
    "complex": lambda y: abs(complex(y.abs().max())),
    "how many": lambda y: 0.5 if len(y[y.abs() > 3]) else 1.0,
    "how many, by shape": lambda y: 0.5 if (y.abs() > 3).nonzero().shape[0] else 1.0,
    "how many, one by one": lambda y: 0.5 ** len([1 for _ in y[y.abs() > 3]]),
    "how many, by size": lambda y: 1 / (1 + torch.masked_select(y, y.abs() > 3).size(0)),
    "how far": lambda y: 1 / (1 + torch.arange(y.abs().max().long()).numel()),
    "how far, by a slice": lambda y: 1 / (1 + torch.zeros(999)[: y.abs().max().long()].numel()),
    "an error": lambda y: _unless_large(y),
    "max of Python": lambda y: 0.01 if max(y.detach().abs()[:, 0]) > 9 else 1.0,
    "how many, of another name": lambda y: 1.0 + len(torch.ops.aten.nonzero.default(y.detach().abs() > 9)),
    "how many, by bytes": lambda y: 1.0 + len(y[(y.abs() > 9).byte()]),
    "a number of another name": lambda y: torch.ops.aten._local_scalar_dense(y.detach().abs().max()),
    "cut at positions": lambda y: 1.0 + torch.arange(99).tensor_split(y.detach()[:, 0].abs().long())[0].numel(),
    "apply_": lambda y: _by_apply(y),
    "offset": lambda y: 1.0 + int(y.detach().flatten()[y.abs().argmax() :].storage_offset()),
    "sparse": lambda y: 1.0 + len((y.detach().abs() > 9).to_sparse().values()),
}


def _by_apply(y: Tensor) -> float:
    seen: list[float] = []
    y.detach().clone().apply_(lambda value: seen.append(abs(value)) or value)  # type: ignore[func-returns-value]
    return max(seen)


def _unless_large(y: Tensor) -> float:
    try:
        torch.linalg.cholesky(torch.eye(3) - y.detach()[:, :, None] * y.detach()[:, None] / 100)
    except RuntimeError:
        return 0.5
    return 1.0


class Scaled(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), scale

    def losses(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y.square().sum(1) * self.scale(y)


def batch() -> Tensor:
    x = torch.randn(USERS, 4, generator=torch.Generator().manual_seed(0))
    x[2] *= 50
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", READS)
def test_one_user_moves_the_sum_by_no_more_than_their_share(way: str) -> None:
    torch.manual_seed(0)
    model, x = Scaled(READS[way]), batch()
    parameters, clipping = dict(model.named_parameters()), Clipping("flat", 1.0)

    def clipped(rows: Tensor) -> Tensor:
        sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
        add_clipped(sums, parameters, model.losses, rows, clipping)
        return torch.cat([value.flatten() for value in sums.values()])

    rest = torch.cat([x[:2], x[3:]])
    assert float((clipped(x) - clipped(rest)).norm()) <= 1 + 1e-6
    assert torch.allclose(clipped(x), sum((clipped(x[[user]]) for user in range(USERS)), torch.zeros(15)))


def test_the_line_that_reads_is_named() -> None:
    model = Scaled(READS["float"])
    with pytest.raises(NoRule, match=r"into Python by __float__, in test_reads.py:\d+, .*: leave them in tensors"):
        record(dict(model.named_parameters()), model.losses, batch())


def silent(model: Any, x: Tensor) -> None:
    alone._say.cache_clear()
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Support for mismatched")
        add_clipped(sums, dict(model.named_parameters()), model.losses, x, Clipping("flat", 1.0))


def test_what_follows_from_no_user_may_be_read() -> None:
    model = Scaled(lambda y: 1.0)
    model.scale = lambda y: float(model.layer.weight.detach().norm()) * float(torch.arange(y.shape[1]).sum())
    silent(model, batch())


class Encoder(nn.Module):
    """torch looks whether a mask masks anything."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def losses(self, x: Tensor) -> Tensor:
        found: Tensor = self.encoder(x[:, None].expand(-1, 3, -1), src_key_padding_mask=x[:, :3] > 1)
        return found.sum((1, 2))


def test_torch_may_read_for_itself() -> None:
    silent(Encoder(), batch())
