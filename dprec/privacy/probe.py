"""Before the first step: do users who are processed together get the gradients that each gets alone?

Clipping bounds a user's influence only if a row of the batch influences no other row's gradient. The tape
refuses what it can see; this looks at the model as a whole, on a few real users: plain autograd on one user
alone is the truth, and the tape's norms for the same user inside a batch must agree with it. It catches
batch normalisation, in-batch negatives, a transposed batch, and buffers that learn from users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dprec.errors import MixedUsers
from dprec.privacy.clipping import squared_norms
from dprec.privacy.tape import Tape

USERS = 4
TOLERANCE = 1e-3


def probe(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Any
) -> None:
    """Raise `MixedUsers` unless each of the batch's first users has the gradient it has alone."""
    together = select_users(batch, slice(0, min(USERS, len(batch))))
    users = len(together)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with _repeatable():
        with Tape(parameters, users) as tape:
            tape.watch(together)
            loss = losses(together)
        tape.backward(loss)
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise MixedUsers(
                f"buffer '{name}' changes with the users' data and would be released without noise: "
                "use a layer without running statistics"
            )
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    with torch.no_grad():
        measured = squared_norms(tape.contributions, shapes, users)
    for user in range(users):
        with _repeatable():
            alone = losses(select_users(together, slice(user, user + 1))).sum()
            truth = torch.autograd.grad(alone, list(parameters.values()), allow_unused=True)
        norms = {
            n: 0.0 if g is None else float(g.double().square().sum()) for n, g in zip(parameters, truth, strict=True)
        }
        _compare(norms, {name: float(squared[user]) for name, squared in measured.items()})


def select_users(batch: Any, users: slice) -> Any:
    """Return the batch with these users only."""
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: select_users(getattr(batch, f.name), users) for f in fields(batch)})
    return tree_map(lambda leaf: leaf[users] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch)


def _compare(truth: Mapping[str, float], measured: Mapping[str, float]) -> None:
    scale = max(sum(truth.values()), 1e-12) ** 0.5
    for name, squared in truth.items():
        if abs(squared**0.5 - measured.get(name, 0.0) ** 0.5) > TOLERANCE * scale:
            raise MixedUsers(
                f"parameter '{name}': a user's gradient depends on who else is in the batch "
                f"(norm {measured.get(name, 0.0) ** 0.5:.4g} together, {squared**0.5:.4g} alone); "
                "compute each row of losses(batch) from that row of the batch only"
            )


@contextmanager
def _repeatable() -> Iterator[None]:
    """Same random numbers every time, and no dropout, whose mask would differ between batch sizes."""
    with torch.random.fork_rng(), _NoDropout():
        torch.manual_seed(0)
        yield


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (
            F.dropout,
            F.dropout1d,
            F.dropout2d,
            F.alpha_dropout,
            F.feature_alpha_dropout,
            torch.dropout,
        ):
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
            args = args[:4]
        return func(*args, **kwargs)
