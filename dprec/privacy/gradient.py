"""The private gradient of one batch of users: clipped per user, summed, noised, divided by what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dprec.privacy.clipping import Clipping, add_clipped
from dprec.privacy.noise import GaussianNoise

# A sum of many users is rounded differently with and without one of them. The noise is made for that much more.
ROUNDING = 1e-4


@dataclass(frozen=True)
class PaddingRow:
    """A row that stands for no item: it gets neither gradient nor noise and keeps its public value."""

    parameter: str
    row: int


class PrivateGradient:
    """(1/B) (Σ_u clip(g_u) + σ C N(0, I)), with B the expected batch, never the drawn one.

    The sum and the noise are float32 at least, whatever the precision of the model. One noise draw per call,
    however many micro-batches. `before_release` is called with the batch before noise is drawn, so that what
    is about to be released is on record first.
    """

    def __init__(
        self,
        clipping: Clipping,
        noise_multiplier: float,
        expected_batch: float,
        noise: GaussianNoise,
        padding: Iterable[PaddingRow] = (),
        before_release: Callable[[], None] = lambda: None,
    ) -> None:
        self.clipping = clipping
        self.noise_multiplier = noise_multiplier
        self.expected_batch = expected_batch
        self.noise = noise
        self.padding = tuple(padding)
        self.before_release = before_release
        self.filled: frozenset[int] = frozenset()  # the ids of the parameters whose `.grad` is from the last call
        self._sums: dict[str, Tensor] = {}

    def __call__(
        self, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Sequence[Any]
    ) -> float | None:
        """Fill `.grad`; return the mean loss of the batch's users, which is not private."""
        self.before_release()
        for parameter in parameters.values():
            parameter.grad = None
        sums = self._cleared_sums(parameters)
        seen = [add_clipped(sums, parameters, losses, part, self.clipping) for part in batch if len(part)]
        std = self.noise_multiplier * self.clipping.max_norm * (1 + ROUNDING)
        for total in sums.values():
            self.noise.add_(total, std)
        for padding in self.padding:
            sums[padding.parameter][padding.row] = 0.0
        for name, parameter in parameters.items():
            gradient = sums[name].div_(self.expected_batch)
            if parameter.dtype == gradient.dtype:
                parameter.grad = gradient
            else:
                parameter.grad = gradient.to(parameter.dtype)
        self.filled = frozenset(map(id, parameters.values()))
        mean = [users.losses.float().nanmean() for users in seen]
        return float(torch.stack(mean).nanmean()) if mean else None

    def _cleared_sums(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        # Kept between steps: fresh memory is the most expensive thing on a small machine.
        if self._sums.keys() != parameters.keys():
            self._sums = {
                name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False)
                for name, p in parameters.items()
            }
        for total in self._sums.values():
            total.zero_()
        return self._sums


def padding_rows(module: nn.Module) -> list[PaddingRow]:
    """Return the padding rows that the module's embeddings declare."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [
        PaddingRow(names[id(part.weight)], part.padding_idx)
        for part in module.modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        and part.padding_idx is not None
        and part.weight.requires_grad
    ]
