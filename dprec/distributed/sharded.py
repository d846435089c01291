"""Tables whose rows lie with several processes: each row with its owner, who alone keeps it and moves it.

A sharded table has the shape of the whole and holds the rows of this process. So whoever knows tables by name, shape
and row needs to know nothing else, and rows have one number in all processes. A look-up is answered from the rows that
were fetched for this step, and from this process's own. Whatever else asks for a table is refused in one line.

The same holds of any table that is only looked up, wherever its rows are (`LookedUp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from dprec.errors import UserError

aten = torch.ops.aten
Fill = Callable[[Tensor, int], None]  # writes the initial values of rows over a tensor, given the first one's number


def bounds(rows: int, processes: int) -> list[int]:
    """Return the first row of each process, and where the last one's end; equal numbers, as far as there are rows.

    >>> bounds(10, 4), bounds(3, 4)
    ([0, 3, 6, 9, 10], [0, 1, 2, 3, 3])
    """
    each = -(-rows // processes)
    return [min(process * each, rows) for process in range(processes + 1)]


class Shard:
    """The rows of one process, and those that it has fetched from others."""

    def __init__(self, fill: Fill | None = None, values: Tensor | None = None, first: int = 0) -> None:
        self.fill = fill
        self.first = first
        self._values = values  # (n, *rest), None until the processes are connected
        self._fetched: tuple[Tensor, Tensor] | None = None  # rows, ascending, and their values
        self._noted: list[Tensor] | None = None  # ids, while look-ups are listed

    @property
    def made(self) -> bool:
        return self._values is not None

    @property
    def values(self) -> Tensor:
        if self._values is None:
            raise UserError(
                "a table of a model with shard_tables is read before it is made: fit the model with a Trainer, load a "
                "state_dict into it, or call its configure_model()"
            )
        return self._values

    def copied(self) -> Shard:
        return Shard(self.fill, None if self._values is None else self._values.clone(), self.first)

    def with_values(self, values: Tensor) -> Shard:
        return Shard(None, values, self.first)

    def place_for(self, device: torch.device) -> torch.device:
        """Return where the rows lie once the module has been moved to this device."""
        return device

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        if self._values is not None:
            self._values = self._values.to(device, dtype)

    def owns(self, rows: Tensor) -> Tensor:
        return (rows >= self.first) & (rows < self.first + len(self.values))

    def hold(self, rows: Tensor, values: Tensor) -> None:
        """Answer look-ups of these rows, ascending, with these values from now on."""
        self._fetched = rows, values

    def close(self) -> None:
        """Forget the rows of others."""
        self._fetched = None

    @property
    def listing(self) -> bool:
        return self._noted is not None

    def note(self, ids: Tensor) -> None:
        if self._noted is not None:
            self._noted.append(ids.detach().flatten().long())

    @contextmanager
    def listed(self) -> Iterator[list[Tensor]]:
        """Note which rows are looked up in here, where all of them are zeros; nothing is read."""
        self._noted = []
        try:
            yield self._noted
        finally:
            self._noted = None

    def read(self, ids: Tensor, padding: int) -> tuple[Tensor, Tensor, int]:
        """Return rows' values, the places of these ids among them, and that of padding, which is -1 for none."""
        if padding < 0:
            return *self.found(ids), -1
        values, place = self.found(torch.cat([ids.flatten(), ids.new_tensor([padding])]))  # to know where it is
        return values, place[:-1].view(ids.shape), int(place[-1])

    def found(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows' values, and the places of these ids among them."""
        if self._fetched is None:
            self._refuse_others(ids)
            return self.values, ids - self.first
        values = self._fetched[1]
        place, met = self._among_fetched(ids)
        if bool(met.all()):
            return values, place
        wanted, place = ids.unique(return_inverse=True)
        there, met = self._among_fetched(wanted)
        self._refuse_others(wanted[~met])
        both = values.new_empty(len(wanted), *values.shape[1:])
        both[met], both[~met] = values[there[met]], self.values[wanted[~met] - self.first]
        return both, place

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Write rows where look-ups find them."""
        if self._fetched is not None:
            place, met = self._among_fetched(rows)
            self._fetched[1][place[met]] = values[met]
            rows, values = rows[~met], values[~met]
        self._refuse_others(rows)
        self.values[rows - self.first] = values

    def _among_fetched(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        assert self._fetched is not None
        rows = self._fetched[0]
        if not len(rows):
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        place = torch.searchsorted(rows, ids.contiguous()).clamp_(max=len(rows) - 1)
        return place, rows[place] == ids

    def _refuse_others(self, ids: Tensor) -> None:
        if not bool((own := self.owns(ids)).all()):
            raise UserError(
                f"row {int(ids[~own][0])} of a sharded table lies with another process and was not fetched: which rows "
                "a model reads must follow from its batch alone; outside of training and evaluation load the model in "
                "one process"
            )


Table = TypeVar("Table", bound="LookedUp")


class LookedUp(Tensor):
    """A table that is read by look-ups alone, and of which `shard` has the rows; a step writes these."""

    shard: Shard
    kind: ClassVar[str] = "a table"
    only: ClassVar[str] = "can be told where its rows are"  # what its look-ups do that nothing else can
    setting: ClassVar[str] = ""  # of the model
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type[Table], shape: Sequence[int], shard: Shard, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> Table:
        made: Table = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device(device))  # type: ignore[assignment]
        made.shard = shard
        return made

    def __init__(self, *given: Any, **options: Any) -> None:
        pass

    def alike(self: Table, shard: Shard, dtype: torch.dtype, device: torch.device) -> Table:
        """Return a table of this kind and shape with these rows."""
        return type(self)(self.shape, shard, dtype, device)

    def with_values(self: Table, values: Tensor) -> Table:
        """Return a table of the same rows, with other values in those of this process."""
        return self.alike(self.shard.with_values(values), values.dtype, values.device)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        table, rest, kwargs = args[0], args[1:], kwargs or {}
        if isinstance(table, LookedUp):
            if func in LOOK_UPS:
                return _read(func, table.shard, args, kwargs)
            if func in OTHERS:
                return OTHERS[func](table, *rest, **kwargs)
        raise UserError(
            f"{cls.kind} is used by {func}, and only its look-ups {cls.only}: leave {cls.setting} out, or read the "
            "table by nn.Embedding, nn.EmbeddingBag or table[ids]"
        )


class ShardedTable(LookedUp):
    """A table of which this process has some rows: look-ups by id read it, and an owner's step writes it."""

    kind = "a sharded table"
    only = "know that other processes have most of it"
    setting = "model.shard_tables"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UserError("a sharded table is not pickled, since most of it is elsewhere: use trainer.save_checkpoint")


LOOK_UPS = {  # where each has its ids
    aten.embedding.default: 1,
    aten._embedding_bag.default: 1,
    aten._embedding_bag_forward_only.default: 1,
    aten.embedding_bag.default: 1,
    aten.embedding_bag.padding_idx: 1,
    aten.index.Tensor: 1,
    aten.index_select.default: 2,
}
PADDED = {  # where bags have the row that counts for nothing
    aten._embedding_bag.default: 8,
    aten._embedding_bag_forward_only.default: 8,
    aten.embedding_bag.padding_idx: 8,
}
WRAPPING = aten.embedding_bag.padding_idx  # which takes -1 for the last row and not for none


def _read(func: Any, shard: Shard, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given, at = list(args), LOOK_UPS[func]
    listed = func is aten.index.Tensor
    if listed and (len(given[1]) != 1 or given[1][0].is_floating_point() or given[1][0].dtype == torch.bool):
        raise UserError(f"{args[0].kind} is indexed by more than the ids of its rows: read rows whole, by their ids")
    ids = given[1][0] if listed else given[at]
    if listed:
        ids = torch.where(ids < 0, ids + args[0].shape[0], ids)
    padding = given[PADDED[func]] if func in PADDED and len(given) > PADDED[func] else None
    if padding is None:
        padding = -1
    elif padding < 0 and func is WRAPPING:
        padding += args[0].shape[0]
    if shard.listing:
        shard.note(ids if padding < 0 else torch.cat([ids.flatten(), ids.new_tensor([padding])]))
        table = args[0]
        values = torch.zeros(1, *table.shape[1:], dtype=table.dtype, device=ids.device)
        place, padding = torch.zeros_like(ids), -1
    else:
        values, place, padding = shard.read(ids, padding)
    if func in PADDED and len(given) > PADDED[func]:
        given[PADDED[func]] = None if padding < 0 and func is WRAPPING else padding
    given[0], given[at] = values, [place] if listed else place
    return func(*given, **kwargs)


def _moved(table: LookedUp, *given: Any, **options: Any) -> LookedUp:
    """Move the rows themselves, since a module that is moved keeps its parameter and with it the shard."""
    asked = [*given, *options.values()]
    device = next((each for each in asked if isinstance(each, torch.device)), table.device)
    dtype = next((each for each in asked if isinstance(each, torch.dtype)), table.dtype)
    device = table.shard.place_for(device)
    if (device, dtype) == (table.device, table.dtype):
        return table
    table.shard.move(device, dtype)
    return table.alike(table.shard, dtype, device)


def _copy(table: LookedUp, **_: Any) -> LookedUp:
    return table.alike(table.shard.copied(), table.dtype, table.device)


def _copied_from(table: LookedUp, source: Tensor, *_: Any) -> LookedUp:
    if isinstance(source, LookedUp):
        table.shard.values.copy_(source.shard.values)
    else:
        first = table.shard.first
        table.shard.values.copy_(source[first : first + len(table.shard.values)])
    return table


def _put(table: LookedUp, places: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> LookedUp:
    if accumulate or len(places) != 1 or places[0].dtype == torch.bool:
        raise UserError(f"{table.kind} is written to by more than the numbers of its rows: write rows whole")
    table.shard.put(places[0], values.expand(*places[0].shape, *table.shape[1:]))
    return table


OTHERS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: lambda table: table.alike(table.shard, table.dtype, table.device),
    aten.clone.default: _copy,
    aten._to_copy.default: _moved,
    aten.copy_.default: _copied_from,
    aten.index_put_.default: _put,
}


def sharded(parameters: Mapping[str, nn.Parameter]) -> dict[str, ShardedTable]:
    """Return those parameters that are sharded tables."""
    return {name: p for name, p in parameters.items() if isinstance(p, ShardedTable)}  # type: ignore[misc]


def looked_up(parameters: Mapping[str, nn.Parameter]) -> dict[str, LookedUp]:
    """Return those parameters that are tables of which only look-ups know where the rows are."""
    return {name: p for name, p in parameters.items() if isinstance(p, LookedUp)}  # type: ignore[misc]


@contextmanager
def all_listed(tables: Iterable[LookedUp]) -> Iterator[list[list[Tensor]]]:
    """Read zeros of these tables, and note which of their rows are looked up."""
    with ExitStack() as within:
        yield [within.enter_context(table.shard.listed()) for table in tables]


def own_rows(table: Tensor) -> tuple[Tensor, int]:
    """Return the rows of a table that this process keeps, and the number of the first of them.

    >>> own_rows(torch.zeros(3, 2))[1]
    0
    """
    return (table.shard.values, table.shard.first) if isinstance(table, LookedUp) else (table, 0)


def counted_from(first: int, rows: Tensor) -> Tensor:
    """Return the places of rows among those that this process keeps, of which `first` is the first."""
    return rows - first if first else rows


def ids_of(tables: Iterable[Tensor]) -> list[int]:
    """Return the ids of tables, and of what this process has of them."""
    return [id(held) for table in tables for held in (table, own_rows(table)[0])]


def of_table(table: Tensor, values: Tensor) -> Tensor:
    """Return values for the rows that this process keeps of a table, in the form of the table."""
    return table.with_values(values) if isinstance(table, LookedUp) else values
