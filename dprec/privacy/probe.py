"""Before training: do users who are processed together get the gradients that each gets alone?

Clipping bounds a user's influence only if no other row of the batch influences that user's gradient. The tape
refuses what it can see; this looks at the model as a whole, on a few real users. Plain autograd on one user
alone, without anybody's padding, is the truth. The tape's gradient of the same user among others, at another place
and whose histories are longer or shorter, must agree with it: at the weights as they are, and at perturbed ones,
since much is silent at initialisation. It catches batch normalisation, in-batch negatives, a transposed batch, losses
averaged over padding, and state that learns from users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dprec.errors import MixedUsers
from dprec.privacy.gradient import PaddingRow, padding_rows
from dprec.privacy.layout import RANDOM, operation_name, tensors_in
from dprec.privacy.tape import Tape, batch_tensors, select_users

SMALLEST = 1e-4  # norm below which a gradient is rounding
TOLERANCE = 1e-3  # of the gradient's norm in float32; in units of the last place where that is more
PERTURBATION = 0.1
NUDGE = 1e-3  # enough to leave a kink, where rounding decides between two gradients


class Probe:
    """Probes users who meet, as soon as some do, and once more as soon as some of them are padded."""

    def __init__(self) -> None:
        self._done = (False, False)

    def __call__(self, module: Any, batch: Sequence[Any]) -> None:
        """Look at that micro-batch, of those of one batch, that tells most, if it tells more than those before."""
        if all(self._done):
            return
        told = {number: (True, _padded(part)) for number, part in enumerate(batch) if len(part) > 1}
        most = max(told, key=lambda number: (told[number], len(batch[number])), default=None)
        if most is not None and told[most] > self._done:
            parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
            probe(module, parameters, module.losses, batch[most])
            self._done = told[most]


def probe(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Any
) -> None:
    """Raise `MixedUsers` unless users of this batch, two at least, have the gradients they have alone."""
    chosen = _chosen(batch)
    padding = padding_rows(module)
    before = _state(module)
    held = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        for perturbed in (False, True):
            if perturbed:
                _perturb(parameters, padding, PERTURBATION)
            own_draws = False
            for user in chosen:
                together = chosen
                if own_draws:  # only who comes first draws the same alone
                    together = [user, *(other for other in chosen if other != user)]
                given = select_users(batch, together), together.index(user), select_users(batch, [user])
                try:
                    own_draws = _compare_one(parameters, losses, *given)
                except MixedUsers:  # whoever mixes users does so beside this point too; a ReLU at 0 does not
                    for _ in range(2):
                        _perturb(parameters, padding, NUDGE)
                        own_draws = _compare_one(parameters, losses, *given)
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(held[name])
    for name, value in _state(module).items():
        if name not in before or not torch.equal(value, before[name]):
            raise MixedUsers(
                f"'{name}' changes with the users' data and would be used or released without noise: "
                "use a layer without running statistics, keep nothing between batches"
            )


def _padded(batch: Any) -> bool:
    """Whether the users that `probe` looks at have histories of different lengths."""
    return len({tuple(t.shape for t in batch_tensors(select_users(batch, [user]))) for user in _chosen(batch)}) > 1


def _chosen(batch: Any) -> list[int]:
    return sorted({0, len(batch) // 2, len(batch) - 1})  # longest, middle, shortest


def _compare_one(
    parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], together: Any, place: int, alone: Any
) -> bool:
    """Compare the gradient of the user at this place with that user's alone; return whether each draws anything."""
    exactly = torch.autocast(next(iter(parameters.values())).device.type, enabled=False)
    with exactly, _SameDraws():
        truth = torch.autograd.grad(losses(alone).sum(), list(parameters.values()), allow_unused=True)
    with exactly, _SameDraws(len(together)) as draws, Tape(parameters, len(together)) as tape:
        tape.watch(together)
        loss = losses(together)
    tape.backward(loss)
    size = float(torch.stack([torch.zeros(()) if g is None else g.norm().float() for g in truth]).norm())
    for (name, parameter), exact in zip(parameters.items(), truth, strict=True):
        found = _one_user(tape, place, name, parameter)
        difference = found if exact is None else found - exact
        tolerance = max(TOLERANCE, 16 * torch.finfo(parameter.dtype).eps)
        if float(difference.norm()) > tolerance * max(size, SMALLEST):
            raise MixedUsers(
                f"parameter '{name}': a user's gradient depends on who else is in the batch, or on their padding "
                f"(it moves by {float(difference.norm()) / max(size, SMALLEST):.2g} of its norm): "
                "compute entry u of losses(batch) from user u's own items only"
            )
    return draws.by_user


def _one_user(tape: Tape, place: int, name: str, parameter: nn.Parameter) -> Tensor:
    gradient = torch.zeros(1, *parameter.shape, dtype=torch.promote_types(parameter.dtype, torch.float32))
    gradient = gradient.to(parameter.device)
    for contribution in tape.contributions.get(name, ()):
        contribution.materialise(gradient, slice(place, place + 1))
    return gradient[0]


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor a module holds that no optimizer step writes, whether or not a checkpoint would hold it."""
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    held: dict[str, Any] = dict(module.state_dict(keep_vars=True))
    for prefix, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_modules")}
        held |= {f"{prefix}.{name}".strip("."): value for name, value in (own | own.pop("_buffers")).items()}
    return {
        f"{name}[{place}]" if place else name: leaf.detach().clone()
        for name, value in held.items()
        for place, leaf in enumerate(tree_leaves(value))
        if isinstance(leaf, Tensor) and id(leaf) not in trained
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

    The first user of a batch so meets the same negatives and the same noise whoever else is there. `by_user` says
    whether anything was drawn for each of `users` users.
    """

    def __init__(self, users: int = 1) -> None:
        super().__init__()
        self.users = users
        self.by_user = False

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
        if operation_name(func) not in RANDOM:
            return func(*args, **kwargs)
        self._restart()
        drawn = func(*args, **kwargs)
        self.by_user |= any(t.dim() > 0 and t.shape[0] % self.users == 0 for t in tensors_in(drawn))
        return drawn

    def _restart(self) -> None:
        self._operations += 1
        torch.manual_seed(self._operations)


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
_RECURRENT = (torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu)
