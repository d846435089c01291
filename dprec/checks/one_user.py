"""One user's gradient, by plain autograd and out of a tape, in memory that grows with the rows the user reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.uses.look_up import look_up_of


class SparseLookUps(TorchFunctionMode):
    """Look-ups in these tables get sparse gradients from autograd; any other use of a table has a dense one.

    >>> table = torch.nn.Embedding(1000, 2)
    >>> with SparseLookUps([table.weight]):
    ...     read = table(torch.tensor([7])) + table.weight[torch.tensor([9])]
    >>> read.sum().backward()
    >>> table.weight.grad.coalesce().indices()
    tensor([[7, 9]])
    """

    def __init__(self, tables: Iterable[Tensor]) -> None:
        super().__init__()
        self._tables = {id(table) for table in tables}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = look_up_of(func, args, kwargs or {}, lambda tensor: id(tensor) in self._tables)
        if call is None:
            return func(*args, **(kwargs or {}))
        if call.given is not None:
            return func(**call.given | {"sparse": True})
        return F.embedding(call.ids % len(call.table), call.table, sparse=True)


def difference(uses: Sequence[Contribution], place: int, parameter: Tensor, exact: Tensor | None) -> Tensor:
    """Return what a tape found for the user at this place, less the exact gradient: where both may be other than 0."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    own, rest = slice(place, place + 1), parameter.shape[1:]
    reads = as_look_ups(uses)
    if reads is None or not (exact is None or exact.is_sparse):
        whole = torch.zeros(1, *parameter.shape, dtype=dtype, device=parameter.device)
        for use in uses:
            use.materialise(whole, own)
        return whole[0] if exact is None else whole[0].sub_(exact.to_dense() if exact.is_sparse else exact)
    met = [use.ids_of(own) for use in reads]
    if exact is not None:
        exact = exact.coalesce()
        met.append(exact.indices()[0])
    rows = torch.cat(met).unique() if met else torch.zeros(0, dtype=torch.int64)
    found = torch.zeros(1, len(rows), *rest, dtype=dtype, device=parameter.device)
    for use in reads:
        use.numbered(rows).materialise(found, own)
    if exact is not None:
        found[0].index_add_(0, torch.searchsorted(rows, exact.indices()[0]), exact.values().to(dtype), alpha=-1)
    return found[0]


def norm_of(gradient: Tensor) -> Tensor:
    return (gradient.coalesce().values() if gradient.is_sparse else gradient).norm()
