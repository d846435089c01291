"""Autograd functions that many small operations call."""

from __future__ import annotations

from typing import Any, ClassVar

import torch


class PlainFunction(torch.autograd.Function):
    """A function of plain tensors: `run` is `apply` without the search for tensors of torch.func's transforms.

    That search takes as many Python calls as the rest of a small function.
    """

    run: ClassVar[Any] = torch._C._FunctionBase.__dict__["apply"]
