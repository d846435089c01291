"""Before training: do users who are processed together get the gradients that each gets alone?

Clipping bounds a user's influence only if no other row of the batch influences that user's gradient. The tape
refuses what it can see; this looks at the model as a whole, on a few real users. Plain autograd on one user
alone, without anybody's padding, is the truth. The tape's gradient of the same user among others, whose
histories are longer or shorter, must agree with it: at the weights as they are, and at perturbed ones, since
much is silent at initialisation. It catches batch normalisation, in-batch negatives, a transposed batch, losses
averaged over padding, and state that learns from users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from dprec.errors import MixedUsers
from dprec.privacy.gradient import PaddingRow, padding_rows
from dprec.privacy.layout import RANDOM, operation_name
from dprec.privacy.tape import Tape

SMALLEST = 1e-4  # norm below which a gradient is rounding
TOLERANCE = 1e-3  # of the gradient's norm in float32; in units of the last place where that is more
PERTURBATION = 0.1
NUDGE = 1e-3  # enough to leave a kink, where rounding decides between two gradients


def probe(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Any
) -> None:
    """Raise `MixedUsers` unless users of this batch, two at least, have the gradients they have alone."""
    chosen = sorted({0, len(batch) // 2, len(batch) - 1})  # longest, middle, shortest
    padding = padding_rows(module)
    before = _state(module)
    held = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        for perturbed in (False, True):
            if perturbed:
                _perturb(parameters, padding, PERTURBATION)
            for user in chosen:
                together = [user, *(other for other in chosen if other != user)]
                pair = select_users(batch, together), select_users(batch, [user])
                try:
                    _compare_one(parameters, losses, *pair)
                except MixedUsers:  # whoever mixes users does so beside this point too; a ReLU at 0 does not
                    for _ in range(2):
                        _perturb(parameters, padding, NUDGE)
                        _compare_one(parameters, losses, *pair)
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(held[name])
    for name, value in _state(module).items():
        if not torch.equal(value, before[name]):
            raise MixedUsers(
                f"'{name}' changes with the users' data and would be released without noise: "
                "use a layer without running statistics"
            )


def select_users(batch: Any, users: Sequence[int]) -> Any:
    """Return the batch that these users alone would be, in this order."""
    if hasattr(batch, "select") and not isinstance(batch, Tensor):  # a tensor's `select` is another thing
        return batch.select(users)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: select_users(getattr(batch, f.name), users) for f in fields(batch)})
    return tree_map(lambda leaf: leaf[list(users)] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch)


def _compare_one(
    parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], together: Any, alone: Any
) -> None:
    """Compare the first user's gradient among others with that user's gradient alone."""
    exactly = torch.autocast(next(iter(parameters.values())).device.type, enabled=False)
    with exactly, _SameDraws():
        truth = torch.autograd.grad(losses(alone).sum(), list(parameters.values()), allow_unused=True)
    with exactly, _SameDraws(), Tape(parameters, len(together)) as tape:
        tape.watch(together)
        loss = losses(together)
    tape.backward(loss)
    size = float(torch.stack([torch.zeros(()) if g is None else g.norm().float() for g in truth]).norm())
    for (name, parameter), exact in zip(parameters.items(), truth, strict=True):
        found = _first_user(tape, name, parameter)
        difference = found if exact is None else found - exact
        tolerance = max(TOLERANCE, 16 * torch.finfo(parameter.dtype).eps)
        if float(difference.norm()) > tolerance * max(size, SMALLEST):
            raise MixedUsers(
                f"parameter '{name}': a user's gradient depends on who else is in the batch, or on their padding "
                f"(it moves by {float(difference.norm()) / max(size, SMALLEST):.2g} of its norm): "
                "compute entry u of losses(batch) from user u's own items only"
            )


def _first_user(tape: Tape, name: str, parameter: nn.Parameter) -> Tensor:
    gradient = torch.zeros(1, *parameter.shape, dtype=torch.promote_types(parameter.dtype, torch.float32))
    gradient = gradient.to(parameter.device)
    for contribution in tape.contributions.get(name, ()):
        contribution.materialise(gradient, slice(0, 1))
    return gradient[0]


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Everything a checkpoint would release that no optimizer step writes."""
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return {
        f"{name}[{place}]" if place else name: leaf.detach().clone()
        for name, value in module.state_dict().items()
        if name not in trained
        for place, leaf in enumerate(tree_leaves(value))
        if isinstance(leaf, Tensor)
    }


def _perturb(parameters: Mapping[str, nn.Parameter], padding: Iterable[PaddingRow], size: float) -> None:
    with _SameDraws(), torch.no_grad():
        held = [(parameters[row.parameter][row.row], parameters[row.parameter][row.row].clone()) for row in padding]
        for parameter in parameters.values():
            parameter.add_(torch.randn_like(parameter), alpha=size)
        for row, value in held:  # no step ever moves these, and models rely on it
            row.copy_(value)


class _SameDraws(TorchFunctionMode):
    """Random numbers that depend on nothing but how many random operations came before; no dropout.

    The first user of a batch so meets the same negatives and the same noise whoever else is there.
    """

    def __enter__(self) -> Any:
        self._kept = torch.random.fork_rng()
        self._kept.__enter__()
        self._operations = 0
        self._restart()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._kept.__exit__(*error)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        if func in _RECURRENT:
            args = tuple(0.0 if isinstance(value, float) else value for value in args)  # dropout between layers
        if operation_name(func) in RANDOM:
            self._restart()
        return func(*args, **kwargs)

    def _restart(self) -> None:
        self._operations += 1
        torch.manual_seed(self._operations)


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
_RECURRENT = (torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu)
