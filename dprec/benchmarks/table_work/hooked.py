"""DP-SGD with hooks on layers, for models of linear layers and bags that are each called once.

These are two of the three variants in the comparison with LazyDP. The third is dprec's own, which needs no gradient of
a single record. All three have the same noise and the same updates of tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.gradients.clipping import Clipping
from dprec.noise.gaussian import ROUNDING, GaussianNoise
from dprec_kernels.sparse import of_rows

SLICE = 1 << 22  # numbers in memory of single records' gradients of a layer, if they are not kept
Parameters = Mapping[str, nn.Parameter]
Use = tuple[str, nn.Module, Tensor, Tensor]  # a layer's name, the layer, its input and its output


class HookedGradient(ABC):
    """Fills `.grad` with the mean of clipped gradients; sparse ones for tables, whose noise comes with their update."""

    def __init__(
        self, model: nn.Module, clipping: Clipping, noise_multiplier: float, expected: float, noise: GaussianNoise
    ) -> None:
        self.clipping, self.noise, self.expected = clipping, noise, expected
        self.std = noise_multiplier * clipping.max_norm * (1 + ROUNDING)
        self.layers = [(n, part) for n, part in model.named_modules() if isinstance(part, (nn.Linear, nn.EmbeddingBag))]

    def __call__(self, parameters: Parameters, losses: Callable[[Any], Tensor], batch: Sequence[Any]) -> None:
        sums: dict[str, Tensor] = {}
        for part in batch:
            for name, value in self.clipped_sum(parameters, losses, part).items():
                sums[name] = sums[name] + value if name in sums else value
        for name, parameter in parameters.items():
            total = sums[name].coalesce() if sums[name].is_sparse else sums[name]
            if not total.is_sparse:
                self.noise.add_(total, self.std)
            parameter.grad = total.div_(self.expected)

    @abstractmethod
    def clipped_sum(self, parameters: Parameters, losses: Callable[[Any], Tensor], part: Any) -> dict[str, Tensor]:
        """Return Σ_u clip(g_u) of a micro-batch for each parameter, without noise."""

    def forward(self, losses: Callable[[Any], Tensor], part: Any) -> tuple[Tensor, list[Use]]:
        """Return the losses, and each layer's use."""
        uses: list[Use] = []

        def hook_of(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
            return lambda layer, given, output: uses.append((name, layer, given[0].detach(), output))

        handles = [layer.register_forward_hook(hook_of(name)) for name, layer in self.layers]
        try:
            return losses(part), uses
        finally:
            for handle in handles:
                handle.remove()

    def scale(self, squared: Sequence[Tensor]) -> Tensor:
        return self.clipping.scale(torch.stack(list(squared)).sum(0).sqrt())


class Materialised(HookedGradient):
    """DP-SGD(B): builds, keeps, clips and sums the gradient of every record; for tables, only of the rows it reads."""

    def clipped_sum(self, parameters: Parameters, losses: Callable[[Any], Tensor], part: Any) -> dict[str, Tensor]:
        each, uses = self.forward(losses, part)
        gradients = torch.autograd.grad(each.sum(), [output for *_, output in uses])
        own: dict[str, Tensor] = {}
        read: dict[str, Tensor] = {}
        for (name, layer, given, _), gradient in zip(uses, gradients, strict=True):
            if isinstance(layer, nn.EmbeddingBag):
                read[f"{name}.weight"], own[f"{name}.weight"] = distinct(layer, given, gradient)
            else:
                own[f"{name}.weight"] = gradient.unsqueeze(2) * given.unsqueeze(1)  # (B, o, i)
                own[f"{name}.bias"] = gradient
        scale = self.scale(self.squared_norms(own))
        return {
            name: _scattered(read[name], values * scale[:, None, None], parameters[name])
            if name in read
            else torch.tensordot(scale, values, dims=1)
            for name, values in own.items()
        }

    def squared_norms(self, own: Mapping[str, Tensor]) -> list[Tensor]:
        return [values.flatten(1).norm(dim=1).square() for values in own.values()]


class Reweighted(HookedGradient):
    """DP-SGD(R): builds records' gradients only for their norms, which then weight a second backward pass."""

    def clipped_sum(self, parameters: Parameters, losses: Callable[[Any], Tensor], part: Any) -> dict[str, Tensor]:
        each, uses = self.forward(losses, part)
        outputs = [output for *_, output in uses]
        gradients = torch.autograd.grad(each.sum(), outputs, retain_graph=True)
        scale = self.scale(self.squared_norms(uses, gradients))
        again = torch.autograd.grad((each * scale.detach()).sum(), list(parameters.values()))
        return dict(zip(parameters, again, strict=True))

    def squared_norms(self, uses: Sequence[Use], gradients: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for (_, layer, given, _), gradient in zip(uses, gradients, strict=True):
            if isinstance(layer, nn.EmbeddingBag):
                found.append(distinct(layer, given, gradient)[1].flatten(1).norm(dim=1).square())
                continue
            users = max(1, SLICE // (gradient.shape[1] * given.shape[1]))
            parts = zip(gradient.split(users), given.split(users), strict=True)
            built = [(left.unsqueeze(2) * right.unsqueeze(1)).flatten(1).norm(dim=1).square() for left, right in parts]
            found.append(torch.cat(built) + gradient.square().sum(1))
        return found


def distinct(layer: nn.EmbeddingBag, ids: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (B, P) that each record reads, and their gradients (B, P, d), summed at a row's first read.

    >>> ids, gradient = torch.tensor([[4, 4, 0]]), torch.ones(1, 1)
    >>> distinct(nn.EmbeddingBag(5, 1, padding_idx=0), ids, gradient)[1].flatten()
    tensor([2., 0., 0.])
    """
    same = ids.unsqueeze(2) == ids.unsqueeze(1)  # (B, P, P)
    first = ~same.tril(-1).any(2)
    if layer.padding_idx is not None:
        first &= ids != layer.padding_idx
    count = same.sum(2) * first  # (B, P)
    return ids, count.unsqueeze(2) * gradient.unsqueeze(1)


def _scattered(ids: Tensor, values: Tensor, table: Tensor) -> Tensor:
    return of_rows(ids.flatten(), values.flatten(0, 1), table.shape).coalesce()
