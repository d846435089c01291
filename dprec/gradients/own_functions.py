"""What runs in place of some functions of torch: losses with an exact gradient, and attention in less time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch._C._functorch import peek_interpreter_stack

from dprec.gradients.operations import attention
from dprec.gradients.operations.cross_entropy import SURE
from dprec.gradients.uses.arguments import Instead, named
from dprec.gradients.uses.as_written import AsWritten

OWN: dict[Callable[..., Any], Instead] = {
    **SURE,
    F.scaled_dot_product_attention: (attention.NAMES, attention.attended),
}


def called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what a function of torch gives, by dprec's own where that is better.

    Within torch.func's transforms, where users are taken one by one, it is torch's.
    """
    names, own = OWN.get(function, ((), None))
    result = None if own is None or peek_interpreter_stack() is not None else own(named(names, args, kwargs))
    return function(*args, **kwargs) if result is None else result


class OwnFunctions(AsWritten):
    """Has them run where no tape does, such as where one checks what a tape says.

    >>> import torch
    >>> scores = torch.tensor([[20.0, 0.0]], requires_grad=True)
    >>> with OwnFunctions():
    ...     F.cross_entropy(scores, torch.tensor([0])).backward()
    >>> print(scores.grad)
    tensor([[-2.0612e-09,  2.0612e-09]])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called(func, args, kwargs or {})
