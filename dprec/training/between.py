"""Between private steps: the gradient stays as it was made, and nothing but the optimizer moves the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

from dprec.checks.state import State, changed, quick_state
from dprec.errors import UserError


class PrivateGradients:
    """The gradients of one step, as they were made."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._made = {name: p.grad for name, p in parameters.items()}
        self._state = self._now()

    def put_back(self) -> None:
        """Give every parameter its gradient again, after a zero_grad that took it away."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._made[name]

    def refuse_changed(self, between: str = "after training.backward(batch)") -> None:
        """Refuse gradients that are others now."""
        now = self._now()
        for name, parameter in self._parameters.items():
            if parameter.grad is not self._made[name] or now.get(name) != self._state.get(name):
                raise UserError(
                    f"'{name}'.grad was changed {between}: leave out zero_grad, loss.backward(), gradient clipping, "
                    "scalers and penalties until optimizer.step(); a penalty goes into the losses, a bound on a user's "
                    "gradient is max_norm"
                )

    def _now(self) -> Mapping[str, object]:
        grads = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        whole = {name: grad for name, grad in grads.items() if grad.layout == torch.strided}
        rows = {name: grad._values() for name, grad in grads.items() if name not in whole}
        return quick_state({**whole, **rows})


def refuse_written(before: State, after: State) -> None:
    """Refuse a model that was written to between two steps."""
    if written := changed(before, after):
        raise UserError(
            f"'{written[0]}' was written to between two steps, by something else than the optimizer that "
            "dprec.private was given: look at the model, and set what is public in it, within training.public(), "
            "where it is in eval mode; let no other optimizer move it"
        )


def identity(module: nn.Module) -> str:
    """Return a number that a model's trained parameters have in common with a copy of them and with no others.

    >>> layer = nn.Linear(2, 2)
    >>> before = identity(layer)
    >>> with torch.no_grad():
    ...     _ = layer.bias.add_(1)
    >>> identity(layer) == before
    False
    """
    told = hashlib.sha256()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            told.update(name.encode())
            flat = parameter.detach().cpu().contiguous().reshape(-1)
            told.update(flat.view(torch.uint8).numpy().data)
    return told.hexdigest()
