"""Recognises look-ups: calls that read whole rows of a table by their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.uses.arguments import named
from dprec.gradients.uses.registry import RULES, Recorder

_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_BAG = (
    *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse"),
    *("per_sample_weights", "include_last_offset", "padding_idx"),
)


class LookUpCall(NamedTuple):
    """A call that reads rows of a table.

    `given` has the arguments of `embedding` and `embedding_bag` by name. Everything else reads `table[ids]`, where
    negative ids count from the end.
    """

    table: Tensor
    ids: Tensor
    given: dict[str, Any] | None = None

    def by_rows(self, read: Callable[[Tensor], Tensor]) -> LookUpCall:
        """Return the same look-up in a table of only the rows that it reads, which `read` returns."""
        size = len(self.table)
        rows, place = (self.ids.long() % size).unique(return_inverse=True)
        table = read(rows)
        if self.given is None:
            return LookUpCall(table, place)
        given = self.given | {"input": place, "weight": table}
        if (padding := given.get("padding_idx")) is not None:
            there = (rows == padding % size).nonzero().flatten().tolist()
            given["padding_idx"] = there[0] if there else None
        return LookUpCall(table, place, given)


def look_up_of(
    function: Callable[..., Any], args: Any, kwargs: Any, is_table: Callable[[Tensor], bool]
) -> LookUpCall | None:
    """Return the look-up that a call does in a tensor that `is_table` accepts; None if it does none.

    >>> table = torch.zeros(4, 2)
    >>> look_up_of(Tensor.__getitem__, (table, slice(1, 3)), {}, lambda tensor: tensor is table).ids
    tensor([1, 2])
    >>> look_up_of(torch.index_select, (), {"input": table, "axis": -1, "index": 0}, lambda tensor: True) is None
    True
    """
    if function in (F.embedding, F.embedding_bag):
        given = named(_EMBEDDING if function is F.embedding else _BAG, args, kwargs)
        return LookUpCall(given["weight"], given["input"], given) if is_table(given["weight"]) else None
    if function in (torch.index_select, Tensor.index_select):
        given = named(("input", "dim", "index"), args, kwargs)
        table, ids = given["input"], given["index"]
        return LookUpCall(table, ids) if given["dim"] in (0, -table.dim()) and is_table(table) else None
    if function is not Tensor.__getitem__ or not is_table(args[0]):
        return None
    table, ids = args
    if isinstance(ids, tuple) and ids and all(isinstance(rest, slice) and rest == slice(None) for rest in ids[1:]):
        ids = ids[0]
    if isinstance(ids, (slice, int)):
        ids = torch.arange(table.shape[0], device=table.device)[ids]
    whole = isinstance(ids, Tensor) and ids.dtype in (torch.int64, torch.int32)  # uint8 is a mask, as bool is
    return LookUpCall(table, ids) if whole else None


def look_up_by_rule(tape: Recorder, function: Callable[..., Any], call: LookUpCall, ids: Tensor) -> Any:
    """Run a look-up by its rule, but with these ids; NotImplemented if the rule does not cover the call."""
    if call.given is None:
        return RULES[Tensor.__getitem__].run(tape, Tensor.__getitem__, (call.table, ids), {})
    given = {name: ids if value is call.ids else value for name, value in call.given.items()}
    return RULES[function].run(tape, function, (), given)
