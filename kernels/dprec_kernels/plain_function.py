"""Autograd functions that many small operations call."""

from __future__ import annotations

from typing import Any, ClassVar

import torch


class PlainFunction(torch.autograd.Function):
    """A function of plain tensors: `run` is `apply` without the search for tensors that torch.func has left.

    That search takes as many calls of Python as all else that a small function does.
    """

    run: ClassVar[Any] = torch._C._FunctionBase.__dict__["apply"]
