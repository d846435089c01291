"""What `losses(batch)` keeps in a model, such as a mask as long as the batch, is taken away before the next batch.

Kept, it could carry what one user's batch was like into what others add. Many models as people write them make a mask
or the angles of positions when they first run: they make them anew for each micro-batch, and train.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeAlias

from torch import Tensor, nn

from dprec.contract import Losses
from dprec.gradients.layouts.layout import layout_of

KNOWN = frozenset({"torch", "dprec"})  # packages whose modules keep nothing
Held: TypeAlias = "tuple[dict[str, Any], int, list[tuple[str, Any]]]"  # names, how many, and those that may change
_NOTHING = object()


class Forgetting:
    """Losses after which a module holds no tensor that follows from sizes alone and was not there before.

    Whatever follows from the users' data stays, for `state` to find.

    >>> import torch
    >>> class Masked(nn.Module):
    ...     __module__ = "mine"
    ...     mask = None
    ...     def losses(self, batch):
    ...         if self.mask is None:
    ...             self.mask = torch.ones(batch.shape[1])
    ...         return (batch * self.mask).sum(1)
    >>> model = Masked()
    >>> with warnings.catch_warnings(record=True):
    ...     print(Forgetting(model, model.losses)(torch.ones(1, 3)), model.mask)
    tensor([3.]) None
    """

    def __init__(self, module: nn.Module, losses: Losses) -> None:
        self.__wrapped__ = losses
        self._parts = [(path, part) for path, part in module.named_modules() if not _is_known(type(part))]

    def __call__(self, batch: Any) -> Tensor:
        before = [(path, part, _held(part.__dict__), _held(part._buffers)) for path, part in self._parts]
        try:
            return self.__wrapped__(batch)
        finally:
            for path, part, *places in before:
                for held in places:
                    _forget(path, part, held)


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in KNOWN


def _held(names: Any) -> Held:
    return names, len(names), [(name, value) for name, value in names.items() if value is None or type(value) is Tensor]


def _forget(path: str, part: nn.Module, held: Held) -> None:
    names, count, known = held
    changed = [(name, before) for name, before in known if names.get(name) is not before]
    changed += [(name, _NOTHING) for name in [*names][count:]]
    for name, before in changed:
        value = names.get(name)
        if type(value) is not Tensor or layout_of(value) is not None or value.requires_grad:
            continue
        if isinstance(before, Tensor) and before.shape == value.shape:
            continue  # a count, say
        if before is _NOTHING:
            del names[name]
            part._non_persistent_buffers_set.discard(name)
        else:
            names[name] = before
        _say(f"{path}.{name}" if path else name)


@functools.cache
def _say(name: str) -> None:
    warnings.warn(
        f"losses(batch) makes '{name}' and keeps it: training makes it anew for each micro-batch, so that nothing goes "
        "from one to the next",
        UserWarning,
        stacklevel=2,
    )
