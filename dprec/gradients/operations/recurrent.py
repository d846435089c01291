"""Recurrent layers and cells: `nn.GRU`, `nn.LSTM`, `nn.RNN`, `nn.GRUCell`, `nn.LSTMCell`, `nn.RNNCell`.

A layer multiplies by its weights once per step. Given the gradients at all steps' gates, a user's gradient is that of
a linear map whose positions are the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dprec.errors import NoRule
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.over_positions import over_positions
from dprec.gradients.layouts.layout import Layout, layout_of, mark, operation_name
from dprec.gradients.uses.arguments import by_user, marked, named, refuse_of_users
from dprec.gradients.uses.registry import Operation, Recorder, rule
from dprec_kernels import recurrent

LAYER = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
CELLS = "losses(batch) depends on the last cell state of lstm, which has no per-user gradient rule"
CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")


class Weights(NamedTuple):
    """One layer's parameters; biases are optional."""

    outer: Tensor  # (gates * h, inputs)
    inner: Tensor  # (gates * h, h)
    outer_bias: Tensor | None = None  # (gates * h,)
    inner_bias: Tensor | None = None


@rule(torch.gru, torch.lstm)
def layers(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Run the layers one after the other, time first, and return what torch does: the output and the last states."""
    given = named(LAYER, args, kwargs)
    if tape.trainable(given.get("input")):
        return NotImplemented
    name, rows, weights = _asked(tape, function, given, args)
    dtype = given["params"][0].dtype
    last_states = []
    with torch.autocast(given["input"].device.type, enabled=False):
        hidden = given["input"].to(torch.promote_types(dtype, torch.float32)).transpose(0, 1)  # (T, N, i)
        for number, own in enumerate(weights):
            if number:
                hidden = F.dropout(hidden, given["dropout"], given["train"])
            hidden, *rest = (_gru if name == "gru" else _lstm)(Layer(tape, hidden.contiguous(), own))
            last_states.append([states[-1] for states in (hidden, *rest)])
        # A copy: changes in place must not reach what the backward pass reads.
        output = hidden.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)
    last = [torch.stack(states).to(dtype) for states in zip(*last_states, strict=True)]  # (layers, N, h) each
    last[1:] = [tape.without_gradient(cells, CELLS) for cells in last[1:]]
    return marked(output, rows), *(_layers_first(states, name, rows) for states in last)


def _layers_first(states: Tensor, name: str, rows: int) -> Tensor:
    mark(states, Layout(0, f"the last state of {name}, which has layers first: take one layer's", rows))
    return states


@rule(torch.rnn_tanh, torch.rnn_relu)
def plain_layers(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Step by step: layers without gates are linear maps with a function between them."""
    given = named(LAYER, args, kwargs)
    if tape.trainable(given.get("input")):
        return NotImplemented
    name, rows, weights = _asked(tape, function, given, args)
    bend = torch.tanh if name == "rnn_tanh" else torch.relu
    hidden, last = given["input"], []
    with tape:
        for number, own in enumerate(weights):
            hidden = F.dropout(hidden, given["dropout"] if number else 0.0, given["train"])
            states: list[Tensor] = []
            for step in F.linear(hidden, own.outer, own.outer_bias).unbind(1):
                if states:
                    step = step + F.linear(states[-1], own.inner, own.inner_bias)
                elif own.inner_bias is not None:
                    step = step + own.inner_bias
                states.append(bend(step))
            hidden = torch.stack(states, 1)
            last.append(states[-1])
    return marked(hidden, rows), _layers_first(torch.stack(last), name, rows)


class Layer:
    """One run of one layer, and what its gradient at the gates (T, N, gates * h) adds to each weight."""

    def __init__(self, tape: Recorder, x: Tensor, weights: Weights) -> None:
        self.tape, self.x, self.weights = tape, x, weights  # x (T, N, inputs)
        self.outer, self.inner = weights.outer.detach().to(x), weights.inner.detach().to(x)
        self.hidden: Tensor  # (T, N, h), once it is known

    def shift(
        self, biases: Sequence[Tensor | None], uses: Sequence[tuple[Tensor | None, Callable[[Tensor], Contribution]]]
    ) -> Tensor:
        """Return the summed biases for every step; their gradient goes to `uses`."""
        total = self.x.new_zeros(self.outer.shape[0])
        for bias in biases:
            if bias is not None:
                total += bias.detach()
        steps = total.expand(*self.x.shape[:2], -1)
        there = [(weight, make) for weight, make in uses if self.tape.trainable(weight) and weight is not None]
        return self.tape.record(steps, 0, there, kept=[self.x]) if there else steps

    def for_outer(self, gradient: Tensor) -> Contribution:
        return Outer(self._by_user(gradient), self._by_user(self.x))

    def for_inner(self, gradient: Tensor) -> Contribution:
        # Step t meets the hidden state of step t - 1; the first meets zeros.
        return Outer(self._by_user(gradient[1:]), self._by_user(self.hidden[:-1]))

    def for_bias(self, gradient: Tensor) -> Contribution:
        return over_positions(self._by_user(gradient))

    def _by_user(self, steps: Tensor) -> Tensor:
        return by_user(steps.transpose(0, 1), self.tape.users)


def _gru(layer: Layer) -> list[Tensor]:
    outer, inner, outer_bias, inner_bias = layer.weights
    shift = layer.shift([outer_bias], [(outer, layer.for_outer), (outer_bias, layer.for_bias)])
    # The reset gate stands between the candidate and this part of it, so that it has a gradient of its own.
    inner_shift = layer.shift([inner_bias], [(inner, layer.for_inner), (inner_bias, layer.for_bias)])
    hidden = recurrent.gru(layer.x, layer.outer, layer.inner, shift, inner_shift)
    layer.hidden = hidden.detach()
    return [hidden]


def _lstm(layer: Layer) -> list[Tensor]:
    outer, inner, *biases = layer.weights
    uses = [(outer, layer.for_outer), (inner, layer.for_inner), *((bias, layer.for_bias) for bias in biases)]
    hidden, cells = recurrent.lstm(layer.x, layer.outer, layer.inner, layer.shift(biases, uses))
    layer.hidden = hidden.detach()
    return [hidden, cells]


def _asked(tape: Recorder, function: Operation, given: dict[str, Any], args: Any) -> tuple[str, int, list[Weights]]:
    """Return the operation's name, the input's rows per user, and each layer's parameters."""
    name, each = operation_name(function), 4 if given["has_biases"] else 2
    rows = _checked(tape, name, given, args)
    return name, rows, [Weights(*given["params"][at : at + each]) for at in range(0, len(given["params"]), each)]


def _checked(tape: Recorder, name: str, given: dict[str, Any], args: Any) -> int:
    """Return the rows per user; raise `NoRule` if these layers have no per-user gradient."""
    used = next(leaf for leaf in tree_leaves((given, args)) if tape.trainable(leaf))
    wrong = None
    if "batch_sizes" in given or isinstance(given["params"], Tensor):  # another signature
        wrong = "takes packed sequences, whose rows are not in the users' order: pad them on the right"
    elif given["bidirectional"]:
        wrong = "runs in both directions, which has no per-user gradient rule: run it in one"
    elif len(given["params"]) != given["num_layers"] * (4 if given["has_biases"] else 2):
        wrong = "has a proj_size, which has no per-user gradient rule: put a linear layer behind it"
    elif not given["batch_first"]:
        wrong = "takes time first, so that users follow each other: give batch_first=True"
    elif not all(_starts_at_zero(state) for state in tree_leaves(given["hx"])):
        wrong = "starts from a state that is not constant zeros: leave the state out"
    if wrong is None:
        refuse_of_users(name, *given["params"])
    if wrong is not None:
        raise NoRule(f"parameter '{tape.name_of(used)}' is used by {name}, which {wrong}")
    return tape.rows(given["input"], name, used)


def _starts_at_zero(state: Tensor) -> bool:
    return layout_of(state) is None and not state.requires_grad and not bool(state.any())


@rule(torch.gru_cell, torch.lstm_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def cell(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """One step: two linear maps, and the gates that follow from them by autograd."""
    given: dict[str, Any] = dict.fromkeys(CELL) | named(CELL, args, kwargs)
    x, states = given["input"], tree_leaves(given["hx"])
    if tape.trainable(x):
        return NotImplemented
    name = operation_name(function)
    used = next(leaf for leaf in tree_leaves(given) if tape.trainable(leaf))
    rows = tape.rows(x, name, used)
    refuse_of_users(name, *(given[key] for key in CELL[2:]))
    for place, state in enumerate(states):
        if _starts_at_zero(state):
            states[place] = marked(torch.zeros_like(state), rows)
        elif tape.trainable(state) or tape.rows(state, name, used) != rows:
            raise NoRule(
                f"parameter '{tape.name_of(used)}' is used by {name} from a state that is neither constant zeros nor "
                "each user's own: start from zeros"
            )
    with tape:
        outer = F.linear(x, given["w_ih"], given["b_ih"])
        inner = F.linear(states[0], given["w_hh"], given["b_hh"])
        if name.startswith("rnn"):
            return (torch.tanh if name == "rnn_tanh_cell" else torch.relu)(outer + inner)
        if name == "gru_cell":
            (reset, update, candidate), (to_reset, to_update, to_candidate) = outer.chunk(3, 1), inner.chunk(3, 1)
            reset, update = torch.sigmoid(reset + to_reset), torch.sigmoid(update + to_update)
            candidate = torch.tanh(candidate + reset * to_candidate)
            return torch.lerp(candidate, states[0].to(candidate), update)  # autocast: states may be float32
        add, keep, candidate, show = (outer + inner).chunk(4, 1)
        kept = torch.sigmoid(keep) * states[1] + torch.sigmoid(add) * torch.tanh(candidate)
        return torch.sigmoid(show) * torch.tanh(kept), kept
