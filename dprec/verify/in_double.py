"""A user's gradient in float64, by plain autograd: the reference for the engine's share of that user.

The model stays as it is. Every torch function that it calls gets its arguments, and copies of parameters, in float64.
Only the rows that are read of a looked-up table are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from dprec.gradients.layouts.layout import FORM, RANDOM, operation_name, tensors_in, writes_first_argument
from dprec.gradients.uses.as_written import AsWritten
from dprec.gradients.uses.look_up import LookUpCall, look_up_of
from dprec_kernels.catalogue_softmax import catalogue_softmax, reference
from dprec_kernels.tables import of_rows

PART = 1 << 18  # scores of a catalogue that are kept at once
LOW = (torch.float32, torch.bfloat16, torch.float16)


class InDouble(AsWritten):
    """Runs torch functions in float64, whatever precision their arguments have or request.

    With `double=False` it changes no precision, nor the parameters', for models that do not run in float64.

    >>> layer = nn.Linear(2, 1)
    >>> with InDouble({"weight": layer.weight}) as exact:
    ...     out = layer(torch.ones(3, 2)).sum()
    >>> out.dtype, exact.gradients(out)["weight"]
    (torch.float64, tensor([[3., 3.]], dtype=torch.float64))
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], tables: Collection[str] = (), double: bool = True):
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._like = dict(parameters)
        self._tables = frozenset(tables)
        self._low = LOW if double else ()
        # Tables are copied when they are read. torch.vmap allows no new leaves, so others are copied before.
        whole = [name for name in parameters if name not in self._tables] if double else []
        self._copies: dict[str, Tensor] = {} if double else dict(parameters)
        self._copies.update((name, self._leaf(parameters[name].detach())) for name in whole)
        self._read: dict[str, list[tuple[Tensor, Tensor]]] = {}  # rows of a table, and their copy

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Return the gradient of each parameter that the loss depends on; sparse if a table was only looked up.

        The graph is kept, so that other losses' gradients can be computed from it.
        """
        rows = [(name, ids, copy) for name, reads in self._read.items() for ids, copy in reads]
        leaves = [*self._copies.values(), *(copy for _, _, copy in rows)]
        if not loss.requires_grad or not leaves:
            return {}
        with torch.autocast(loss.device.type, enabled=False):  # where an autograd.Function of a model's own runs back
            found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
        whole = zip(self._copies, found, strict=False)
        gradients = {name: gradient for name, gradient in whole if gradient is not None}
        for (name, ids, _), values in zip(rows, found[len(self._copies) :], strict=True):
            if values is not None:
                shape, device = self._like[name].shape, self._like[name].device
                read = of_rows(ids, values, shape).to(device)
                gradients[name] = gradients[name] + read if name in gradients else read
        return {name: g.coalesce() if g.is_sparse else g for name, g in gradients.items()}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), operation_name(func)
        if name in FORM:
            form = func(*args, **kwargs)
            return torch.float64 if isinstance(form, torch.dtype) and form in self._low else form
        if func is catalogue_softmax:
            func = _by_parts
        if self._low and func in (Tensor.float, Tensor.bfloat16, Tensor.half):
            func = Tensor.double
        if name in RANDOM:
            return self._drawn(func, name, args, kwargs)
        if (call := look_up_of(func, args, kwargs, self._is_table)) is not None:
            return self._look_up(func, call)
        if writes_first_argument(name) and isinstance(args[0], Tensor) and args[0].dtype in self._low:
            return func(args[0], *_mapped(self._exact, tuple(args[1:])), **_mapped(self._exact, kwargs))
        created = not tensors_in((args, kwargs))
        result = func(*_mapped(self._exact, tuple(args)), **_mapped(self._exact, kwargs))
        return result.double() if created and isinstance(result, Tensor) and result.dtype in self._low else result

    def _exact(self, value: Any) -> Any:
        """Return an argument converted to float64."""
        if isinstance(value, torch.dtype):
            return torch.float64 if value in self._low else value
        if not isinstance(value, Tensor):
            return value
        name = self._names.get(id(value)) if self._low else None
        if name is None:
            return value.double() if value.dtype in self._low else value
        if name not in self._copies:
            self._copies[name] = self._leaf(value.detach())
        return self._copies[name]

    def _leaf(self, value: Tensor) -> Tensor:
        return (value.double() if value.dtype in self._low else value).requires_grad_()

    def _drawn(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """Draw the numbers that float32 would draw."""

        def plain(value: Any) -> Any:
            return value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value

        if writes_first_argument(name):
            args[0].detach().copy_(func(plain(args[0].detach()), *args[1:], **kwargs))
            return args[0]
        drawn = func(*_mapped(plain, tuple(args)), **_mapped(plain, kwargs))
        return drawn.double() if isinstance(drawn, Tensor) and drawn.dtype in self._low else drawn

    def _is_table(self, tensor: Tensor) -> bool:
        return self._names.get(id(tensor)) in self._tables

    def _look_up(self, func: Callable[..., Any], call: LookUpCall) -> Any:
        """Look up in a copy of only the rows that are read."""
        own = call.by_rows(lambda rows: self._rows(call.table, rows))
        return own.table[own.ids] if own.given is None else func(**tree_map(self._exact, own.given))

    def _rows(self, table: Tensor, rows: Tensor) -> Tensor:
        copy = self._leaf(table.detach()[rows])
        self._read.setdefault(self._names[id(table)], []).append((rows, copy))
        return copy


def _by_parts(hidden: Tensor, table: Tensor, target: Tensor, padding: int = 0) -> Tensor:
    """Compute the reference, but recompute the matrix of positions times items for the gradient."""
    rows, wanted = hidden.flatten(0, -2), target.flatten()
    step = max(1, PART // len(table))
    parts = [
        checkpoint(reference.catalogue_softmax, h, table, t, padding, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(rows.split(step), wanted.split(step), strict=True)
    ]
    return torch.cat(parts).view(target.shape)


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    return tree_map(change, values, is_leaf=lambda value: isinstance(value, torch.Size))  # else a list
