"""Which tables of a model stay in host memory, and what cannot be trained with tables there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from dprec.distributed.host_tables import HostTable, on_host
from dprec.errors import UserError

PLACES = ("device", "cpu")


def refuse_place(tables_on: str, shard_tables: bool) -> None:
    """Refuse a place for tables that is none, or that is not for tables of several processes."""
    if tables_on not in PLACES:
        raise UserError(f"model.tables_on is '{tables_on}': give cpu, or device, which is where the network is")
    if tables_on == "cpu" and shard_tables:
        raise UserError(
            "model.tables_on is cpu and model.shard_tables is true, but rows go either to the host or to several "
            "processes: leave one out"
        )


def leave_on_host(module: nn.Module, by_rows: bool) -> None:
    """Leave the tables of a module whose network goes to a card where they are, for look-ups alone."""
    if not by_rows:
        raise UserError(
            f"model.tables_on is cpu, and {type(module).__name__} is no model of clicks, whose tables are read by rows "
            "alone: items are scored all at once, with sampled negatives as the model is judged; leave it out"
        )
    held: dict[int, nn.Parameter] = {}
    for weight in (part.weight for part in module.modules() if isinstance(part, (nn.Embedding, nn.EmbeddingBag))):
        if not isinstance(weight, HostTable):
            values = weight.detach().cpu()
            held.setdefault(id(weight), nn.Parameter(HostTable.of(values), requires_grad=weight.requires_grad))
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = held.get(id(parameter), parameter)


@contextmanager
def gradients_on_host(module: nn.Module) -> Iterator[None]:
    """Keep gradients of tables in host memory from a move of the module, which takes gradients along."""
    tables = on_host(dict(module.named_parameters())).values()
    held = [table.grad for table in tables]
    for table in tables:
        table.grad = None
    yield
    for table, gradient in zip(tables, held, strict=True):
        table.grad = gradient


def refuse_untrainable(processes: int, plain: bool) -> None:
    """Refuse training that tables in host memory have no step for."""
    if processes > 1:
        raise UserError(
            f"model.tables_on is cpu, and {processes} processes train, each of which would keep and step whole tables: "
            "train on one card, or share the rows by model.shard_tables"
        )
    if plain:
        raise UserError(
            "model.tables_on is cpu, and only steps of privacy.sparsity can move tables there: set a privacy block "
            "with sparsity, or leave model.tables_on out"
        )


def plain(state: Any) -> Any:
    """Return a state_dict in which tables in host memory are plain ones."""
    for name, value in state.items():
        if isinstance(value, HostTable):
            state[name] = value.shard.values
    return state
