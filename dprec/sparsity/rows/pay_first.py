"""Hooks that add the noise which rows owe before somebody sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from dprec.errors import UserError


class PayFirst:
    """A hook of modules that hold tables, before a look-up or a state_dict; a copy of the module is paid up, too."""

    def __init__(self, pay: Callable[[], None], tables: Sequence[nn.Parameter]) -> None:
        self._pay = pay
        self._tables = list(tables)

    def __call__(self, *_: Any) -> None:
        self._pay()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        """Pay, also in tables that were copied before their hooks were; the copy owes nothing and needs no hook."""
        self._pay()
        with torch.no_grad():
            for table in self._tables:
                if id(table) in memo:
                    memo[id(table)].copy_(table)
        return nothing

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UserError("a module whose rows may owe noise is not pickled: save its state_dict()")


def guard(module: nn.Module, tables: Sequence[nn.Parameter], pay: Callable[[], None], busy: Callable[[], bool]) -> None:
    """Pay before any part of the module shows these tables, except to look-ups while `busy`."""
    held = {id(table) for table in tables}
    show = PayFirst(pay, tables)
    read = PayFirst(lambda: None if busy() else pay(), tables)
    for part in module.modules():
        if not held.isdisjoint(map(id, part.parameters())):
            part.register_state_dict_pre_hook(show)
            part.register_forward_pre_hook(read)  # of all that hold it, who may read its weight by themselves


def nothing(*_: Any) -> None:
    """Do nothing."""
