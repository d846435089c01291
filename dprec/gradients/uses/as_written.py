"""Runs compiled code uncompiled while losses are recorded: the tape cannot see into compiled code."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class AsWritten(TorchFunctionMode):
    """A mode in which `torch.compile` has no effect.

    >>> def backend(graph, inputs):
    ...     raise RuntimeError
    >>> sine = torch.compile(torch.sin, backend=backend)
    >>> with AsWritten():
    ...     sine(torch.zeros(1))
    tensor([0.])
    """

    def __init__(self) -> None:
        super().__init__()
        self._stances: list[AbstractContextManager[Any]] = []  # one for each time that it was entered

    def __enter__(self) -> Any:
        compiles = "torch._dynamo" in sys.modules  # else nothing is compiled, and it takes a second to import
        stance = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        stance.__enter__()
        self._stances.append(stance)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stances.pop().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))
