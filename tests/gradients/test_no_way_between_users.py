"""Whatever a model does with values on their way, one user moves the sum of clipped gradients by one share."""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dprec.errors import NoRule, UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping, record
from dprec.gradients.tape import Tape
from dprec.gradients.uses.batches import batch_tensors, select_users
from tests.one_micro_batch import add_clipped

USERS, LARGE = 6, 100.0


def bounded(y: Tensor) -> Tensor:
    """Return 1 where all are small, and less where one is large."""
    return LARGE / y.detach().abs().amax().clamp(min=LARGE)


def large(y: Tensor) -> Tensor:
    """Return 1 where one is large, and else 0."""
    return (y.detach().abs().amax() > LARGE).long()


class Model(nn.Module):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(4, 3), form
        self.alias = self.layer.weight.data
        self.choices = nn.ModuleList([nn.Identity(), nn.Tanh()])

    def losses(self, batch: Any) -> Tensor:
        loss: Tensor = self.form(self, batch)
        return loss


Form = Callable[[Model, Tensor], Tensor]


def scaled(scale: Callable[[Tensor], Any]) -> Form:
    """Losses that a scale moves which is computed from all users' values."""

    def losses(model: Model, x: Tensor) -> Tensor:
        y = model.layer(x)
        return (y * scale(y.detach())).square().sum(1)  # type: ignore[no-any-return]

    return losses


def told(known: Callable[[Tensor], Any]) -> Form:
    """Losses that are smaller where something is said to be true of a number that is 1 if one value is large."""
    return scaled(lambda y: 0.01 if known(large(y)) else 1.0)


def hooked(make: Callable[[Tensor], Callable[[Tensor], Any]]) -> Form:
    def losses(model: Model, x: Tensor) -> Tensor:
        y = model.layer(x)
        y.register_hook(make(y))
        return y.square().sum(1)  # type: ignore[no-any-return]

    return losses


def running(y: Tensor) -> Callable[[Tensor], Tensor]:
    seen = [0.0]

    def hook(gradient: Tensor) -> Tensor:
        seen[0] = max(seen[0], float(gradient.abs().max()))
        return gradient * (0.01 if seen[0] > LARGE else 1.0)

    return hook


def by_data(model: Model, x: Tensor) -> Tensor:
    h = x * 1
    y = model.layer(h)
    h.data.mul_(bounded(y))
    return y.square().sum(1)  # type: ignore[no-any-return]


def of_a_factor(model: Model, x: Tensor) -> Tensor:
    y = model.layer(x)
    factor = torch.ones_like(y)
    z = y * factor
    factor.data.mul_(bounded(y))
    return z.square().sum(1)  # type: ignore[no-any-return]


def for_a_while(weight: Callable[[Model], Tensor]) -> Form:
    def losses(model: Model, x: Tensor) -> Tensor:
        scale = bounded(model.layer(x))
        weight(model).mul_(scale)
        y = model.layer(x)
        weight(model).div_(scale)
        return y.square().sum(1)  # type: ignore[no-any-return]

    return losses


def of_an_expression(model: Model, x: Tensor) -> Tensor:
    weight = model.layer.weight * 1.0
    weight.data.mul_(bounded(x))
    return F.linear(x, weight).square().sum(1)


def of_numpy(t: Tensor) -> bool:
    memory = np.zeros(1, dtype=np.int64)
    torch.from_numpy(memory).copy_(t)
    return bool(memory[0])


def shared_with_numpy(t: Tensor) -> bool:
    buffer = torch.zeros(1, dtype=torch.int64)
    memory = buffer.numpy()
    buffer.copy_(t)
    return bool(memory[0])


def of_bytes(t: Tensor) -> bool:
    memory = bytearray(8)
    torch.frombuffer(memory, dtype=torch.int64).copy_(t)
    return any(memory)


class Halved(torch.autograd.Function):
    """It says that it is torch's."""

    __module__ = "torch.autograd.function"

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * min(1.0, LARGE / float(gradient.norm()))


class Reads(nn.Module):
    forward = float


FORMS: dict[str, Form] = {
    "a hook that knows": hooked(lambda y: lambda gradient: gradient * bounded(y)),
    "a hook that remembers": hooked(running),
    "x.data after its use": by_data,
    "data of a factor": of_a_factor,
    "a weight's data for a while": for_a_while(lambda model: model.layer.weight.data),
    "another name of a weight": for_a_while(lambda model: model.alias),
    "data of what follows from a weight": of_an_expression,
    "an autograd.Function of torch's name": lambda model, x: Halved.apply(model.layer(x)).square().sum(1),
    "a module by its place": lambda model, x: model.choices[large(x)](model.layer(x)).square().sum(1),
    "memory of numpy": told(of_numpy),
    "memory shared with numpy": told(shared_with_numpy),
    "memory of Python": told(of_bytes),
    "tree_map": told(lambda t: tree_map(float, [t])[0]),
    "a module that reads": told(lambda t: Reads()(t)),
    "how torch writes it": told(lambda t: "tensor(1)" in torch._tensor_str._str(t)),
    "a distribution's text": told(lambda t: "loc: 1" in repr(torch.distributions.Normal(t.float(), 1.0))),
    "is_contiguous": told(lambda t: not torch.zeros(2, 2)[: 1 + t].T.is_contiguous()),
    "dim_order": told(lambda t: torch.zeros(3, 3).transpose(0, t).dim_order() != (0, 1)),  # type: ignore[arg-type]
    "as large as another": scaled(lambda y: 1.0 / _as_large(y)),
    "a branch": told(lambda t: _branch(t)),
    "sym_size": told(lambda t: torch.ops.aten.sym_size(torch.zeros(2)[: 1 + t])[0] > 1),
    "unbind_copy": told(lambda t: len(torch.ops.aten.unbind_copy(torch.zeros(2)[: 1 + t])) > 1),
    "a device's number": told(lambda t: torch.device("cpu", t).index),  # type: ignore[call-overload]
    "a tensor of a class of its own": scaled(lambda y: y.as_subclass(Ranged) * 1.0),
    "a function that is given": lambda model, x: _by_distance(model.layer(x)),
    "memory of a sparse matrix": told(lambda t: _of_sparse(t)),
    "another name of random numbers": scaled(lambda y: _of_noise(y)),
    "memory that was a gradient": told(lambda t: _of_gradient(t)),
    "bmm of users who are second": scaled(lambda y: LARGE / torch.bmm(*_second(y))[0].clamp(min=LARGE)),
    "baddbmm of users who are second": scaled(lambda y: LARGE / _baddbmm(y)[0].clamp(min=LARGE)),
    "a gradient that is added": scaled(lambda y: _of_all(_added_gradient(y))),
    "a parameter made of values": scaled(lambda y: _of_all(nn.Parameter(y, requires_grad=False))),
    "a class of tensors made of values": scaled(lambda y: _of_all(Tensor._make_subclass(Tensor, y))),
    "a parameter's size": told(lambda t: len(nn.Parameter(torch.arange(1 + t).float())) > 1),
}


def _of_all(y: Tensor) -> Tensor:
    return LARGE / y.abs().amax(dim=tuple(range(y.dim()))).clamp(min=LARGE)


def _second(y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones(1, len(y), len(y)), torch.stack([y.abs()])


def _baddbmm(y: Tensor) -> Tensor:
    return torch.baddbmm(torch.zeros(1, 1, 1), *_second(y))


def _added_gradient(y: Tensor) -> Tensor:
    leaf = torch.zeros(1, requires_grad=True)
    torch.autograd.backward((leaf * y.abs()).sum())
    assert leaf.grad is not None
    return leaf.grad


def _as_large(y: Tensor) -> int:
    hits = torch.zeros(99)[: 1 + 98 * large(y)]
    return y[:, :1].expand_as(hits[None].expand(len(y), -1)).shape[1]


def _branch(t: Tensor) -> bool:
    seen: list[int] = []

    def large(x: Tensor) -> Tensor:
        seen.append(1)
        return x * 1

    torch.ops.higher_order.cond(t > 0, large, lambda x: x * 2, (torch.ones(1),))
    return bool(seen)


class Ranged(Tensor):
    """It is as exact as its largest number allows."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            found = func(*args, **(kwargs or {}))
            return found * LARGE / float(args[0].abs().max().clamp(min=LARGE)) if func is Tensor.mul else found


def _by_distance(y: Tensor) -> Tensor:
    seen: list[float] = []

    def distance(a: Tensor, b: Tensor) -> Tensor:
        seen.append(float(a.abs().max()))
        return (a - b).square().sum(1)

    zeros = torch.zeros_like(y)
    each = F.triplet_margin_with_distance_loss(
        y, zeros, zeros + 9, distance_function=distance, margin=1e6, reduction="none"
    )
    return each * LARGE / max(LARGE, *seen)


def _of_sparse(t: Tensor) -> bool:
    matrix = torch.eye(2).to_sparse_csr()
    values = matrix.values()
    matrix.mul_(1.0 + t)
    return bool(values[0] > 1)


def _of_noise(y: Tensor) -> Tensor:
    noise = torch.zeros(len(y), len(y))
    turned = noise.T
    noise.normal_()
    turned.copy_(y.abs().amax(1, keepdim=True).expand(-1, len(y)))
    return LARGE / noise.amax(1, keepdim=True).clamp(min=LARGE)


def _of_gradient(t: Tensor) -> bool:
    held, leaf = torch.zeros(1), torch.zeros(1, requires_grad=True)
    memory = held.numpy()
    leaf.grad = held
    assert leaf.grad is not None
    leaf.grad.copy_(t)
    return bool(memory[0])


def clipped(model: Model, batch: Any) -> Tensor:
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
    add_clipped(sums, parameters, model.losses, batch, Clipping("flat", 1.0))
    return torch.cat([value.flatten() for value in sums.values()])


def rows(place: int) -> Tensor:
    x = torch.randn(USERS, 4, generator=torch.Generator().manual_seed(0))
    x[place] *= 1000
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("name", FORMS)
def test_one_user_moves_the_sum_by_one_share(name: str, place: int) -> None:
    torch.manual_seed(0)
    model, x = Model(FORMS[name]), rows(place)
    rest = torch.cat([x[:place], x[place + 1 :]])
    try:
        moved = clipped(model, x) - clipped(model, rest)
    except UserError:
        return  # refused
    assert float(moved.norm()) <= 1 + 1e-5


SILENT: dict[str, Callable[[Tensor], Any]] = {
    "new_full": lambda y: y.new_full((1,), 2.0),
    "new_tensor": lambda y: y.new_tensor([2.0]),
    "all rows by a slice": lambda y: y[0:] * y[: len(y)],
    "ones like a position": lambda y: torch.ones_like(y.T[0]).sum(),
    "flat and back": lambda y: y.reshape(-1, 1).tanh().view_as(y),
    "zeros that are filled": lambda y: _filled(y),
}


def _filled(y: Tensor) -> Tensor:
    buffer = torch.empty(len(y), 2)
    buffer[:, 0] = y[:, 0]
    buffer[:, 1] = 1.0
    return buffer.sum(1, keepdim=True)


@pytest.mark.parametrize("name", SILENT)
def test_nobody_is_taken_alone_without_need(name: str) -> None:
    alone._say.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped(Model(scaled(SILENT[name])), rows(1))


def test_a_parameter_in_a_row_of_a_square_is_not_taken_for_one_of_each_user() -> None:
    """x[..., 0, :] of a matrix (users, positions) is the first user's row."""

    class Marked(Model):
        def losses(self, batch: Any) -> Tensor:
            x = batch * self.layer.weight[1]
            x[..., 0, :] = self.layer.weight[0]
            return x.square().sum(1)

    with pytest.raises(NoRule, match="__setitem__"):
        record(dict((model := Marked(by_data)).named_parameters()), model.losses, torch.randn(4, 4))


def test_memory_that_torch_leaves_as_it_was_is_empty_in_losses() -> None:
    with Tape({"weight": nn.Parameter(torch.ones(1))}, USERS) as tape:
        tape.watch([x := torch.ones(USERS, 3)])
        left = torch.full((99, 9), 7.0)
        del left
        made = [torch.empty_strided((99, 9), (9, 1)), x.new_empty_strided((99, 9), (9, 1))]
        grown = torch.ones(1).resize_(99, 9)
    assert not any(bool(each.any()) for each in made)
    assert float(grown.sum()) == 1


@dataclass
class Context:
    price: Tensor


@dataclass
class Nested:
    x: Tensor
    context: Context

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Computed:
    x: Tensor
    price: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.price = self.x.abs().amax(1)
        self.other = self.price.clone()

    def __len__(self) -> int:
        return len(self.x)


class Named(dict[str, Any]):
    def __len__(self) -> int:
        return len(self["x"])


class Annotated(dict[str, Any]):
    """A batch that holds more than its items."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x=x)
        self.price = x.abs().amax(1)

    @functools.cached_property
    def largest(self) -> Tensor:
        return self["x"].abs().amax(1)

    def __len__(self) -> int:
        return len(self["x"])


class Scaler:
    def __init__(self, x: Tensor) -> None:
        self.price = x.abs().amax(1)

    def __call__(self) -> Tensor:
        return self.price


def annotated(x: Tensor) -> Tensor:
    x = x.clone()
    x.price = x.abs().amax(1)  # type: ignore[attr-defined]
    return x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x


BATCHES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a dataclass in a dataclass": (lambda x: Nested(x, Context(x.abs().amax(1))), lambda batch: batch.context.price),
    "fields made afterwards": (Computed, lambda batch: batch.price),
    "attributes made afterwards": (Computed, lambda batch: batch.other),
    "a dataclass in a dict": (
        lambda x: Named(x=x, context=Context(x.abs().amax(1))), lambda batch: batch["context"].price,
    ),
    "attributes of a dict": (Annotated, lambda batch: batch.price),
    "what a dict computes once": (Annotated, lambda batch: batch.largest),
    "an object that is called": (lambda x: Nested(x, Scaler(x)), lambda batch: batch.context()),  # type: ignore[arg-type]
    "an attribute of a tensor": (lambda x: Nested(annotated(x), None), lambda batch: batch.x.price),  # type: ignore[arg-type]
    "one number of all": (
        lambda x: Nested(x, Context(x.abs().amax())), lambda batch: batch.context.price,
    ),
    "a mapping": (
        lambda x: Nested(x, collections.UserDict(price=x.abs().amax(1))),  # type: ignore[arg-type]
        lambda batch: batch.context["price"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BATCHES)
def test_users_tensors_are_found_wherever_a_batch_has_them(name: str) -> None:
    make, price = BATCHES[name]

    def losses(model: Model, batch: Any) -> Tensor:
        x = batch["x"] if isinstance(batch, dict) else batch.x
        return (model.layer(x) * bounded(price(batch))).square().sum(1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Model(losses), rows(2)
    try:
        moved = clipped(model, make(x)) - clipped(model, make(torch.cat([x[:2], x[3:]])))
        chosen = select_users(make(x), [3, 1])
    except (UserError, AttributeError):  # of a batch that nobody can take apart
        return
    assert float(moved.norm()) <= 1 + 1e-5
    pairs = zip(batch_tensors(chosen), batch_tensors(make(x)), strict=False)
    assert all(torch.equal(own, whole[[3, 1]]) for own, whole in pairs)


def test_an_object_that_nobody_can_take_apart_is_refused() -> None:
    batch = {"x": Slotted(torch.ones(2, 3))}
    assert len(batch_tensors(batch)) == 1
    with pytest.raises(UserError, match="a batch holds tensors in a Slotted, which does not say whose they are"):
        select_users(batch, [0])
