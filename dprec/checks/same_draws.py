"""Random numbers that are the same whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor
from torch.overrides import TorchFunctionMode

from dprec.checks.entropy import Streams
from dprec.checks.fixed_draws import drawn, fixed
from dprec.gradients.layouts.layout import RANDOM, operation_name, tensors_in
from dprec.gradients.uses.batches import batch_tensors


class SameDraws(TorchFunctionMode):
    """Random numbers that depend on nothing but how many random operations came before, and their place; no dropout.

    A user so meets the same negatives and the same noise whoever else is there, and however long their histories are.
    `batch` says which rows are a user's; without one there is one user. `by_user` says whether anything was drawn for
    each user all the same: by a law that is not known here, by size, or by other generators than torch's global ones:
    `streams`, which by default are Python's and NumPy's.
    """

    def __init__(self, batch: Any = None, streams: Streams | None = None) -> None:
        super().__init__()
        self.users = 1 if batch is None else len(batch)
        self.by_user = False
        self._streams = streams or Streams()
        self._lengths = {t.shape[1] for t in (() if batch is None else batch_tensors(batch)) if t.dim() > 1}

    def __enter__(self) -> Any:
        self._put_back = self._streams.position()
        self._streams.fix(0)
        self._started = self._streams.states()
        self._operations = 0
        self._restart()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.by_user |= self._streams.states() != self._started
        self._put_back()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _OWN_WAY and operation_name(func) not in RANDOM:  # nearly all of what is asked
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _RRELUS:
            return F.leaky_relu(args[0], 0.2, inplace=func in _RRELUS[:2])
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        if func is F.multi_head_attention_forward and len(args) > _RATE:  # as the module calls it
            args = (*args[:_RATE], 0.0, *args[_RATE + 1 :])
        if func in _RECURRENT:
            args = tuple(0.0 if isinstance(value, float) else value for value in args)  # dropout between layers
        if operation_name(func) not in RANDOM:
            return func(*args, **kwargs)
        if func is torch.randperm and args[:1] == (self.users,) and self.users not in self._lengths:
            return torch.arange(self.users).flip(0)  # of users, who are one alone
        self._restart()
        found = fixed(func, tuple(args), kwargs, partial(self._uniform, self._operations))
        known = found is not NotImplemented
        if not known:
            found = func(*args, **kwargs)
        for made in tensors_in(found):
            self.by_user |= made.dim() > 0 and made.shape[0] % self.users == 0 and not (known and self._own(made.shape))
        return found

    def _uniform(self, operation: int, shape: Size, device: torch.device) -> Tensor:
        return drawn(operation, shape, device, self._own(shape))

    def _own(self, shape: Size) -> int:
        """Return how many rows of a tensor of this shape are each user's; 0 where that cannot be told."""
        if not shape or self.users in self._lengths:  # one for each user, or for each position?
            return 0
        own = shape[0] // self.users
        return own if shape[0] % self.users == 0 and own in {1, *self._lengths} else 0

    def _restart(self) -> None:
        self._operations += 1
        torch.default_generator.manual_seed(self._operations)  # a tenth of the time of torch.manual_seed
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(self._operations)


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
_RRELUS = (F.rrelu_, torch.rrelu_, F.rrelu, torch.rrelu)
_RATE = 10  # the place of the dropout rate among the arguments of attention
_RECURRENT = (torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu)
_OWN_WAY = frozenset(
    (*_DROPOUTS, *_RRELUS, *_RECURRENT, F.scaled_dot_product_attention, F.multi_head_attention_forward)
)
