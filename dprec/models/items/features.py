"""Items' vectors with those of their public features added, such as a film's genres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import torch
from torch import Tensor, nn

from dprec.data.formats.format import not_utf8, refuse_other_encodings
from dprec.data.logs.ids import digest_of, normal_texts
from dprec.errors import UserError, first_line
from dprec_kernels.file_tensor import file_tensor

VALUES = 4  # how many of an item's first values in a column are used; `|` separates them
ITEM = "item"  # the column of item ids


class ItemsWithFeatures(nn.Embedding):
    """A table of items to which each item's features add their own vectors, which start at 0.

    A feature's values are hashed to a number of rows, so sizes do not depend on the values.

    >>> items = ItemsWithFeatures(3, 2, padding_idx=0)
    >>> items.add_features({"genre": 10, "decade": 5})
    >>> items.features.weight.shape, items.eval()(torch.tensor([[1, 0]])).shape
    (torch.Size([16, 2]), torch.Size([1, 2, 2]))
    """

    def __init__(self, items: int, dim: int, **options: Any) -> None:
        super().__init__(items, dim, **options)
        self.features: nn.Embedding | None = None
        self.features_read = False

    def add_features(self, rows: Mapping[str, int]) -> None:
        wrong = next((name for name, size in rows.items() if isinstance(size, bool) or not 1 <= size < 2**31), None)
        if wrong is not None or ITEM in rows or not rows:
            named = f"gives '{wrong}' {rows[wrong]} rows" if wrong is not None else f"is {dict(rows)}"
            raise UserError(
                f"model.features {named}: give the columns of model.feature_file but '{ITEM}', each with "
                "the rows that its values are hashed to, at least 1"
            )
        self.rows = dict(rows)
        self.features = table_of_values(rows, self.embedding_dim)
        self.values: Tensor  # (items, S) rows of `features`; 0 if an item has no more values
        self.register_buffer("values", torch.zeros(self.num_embeddings, VALUES * len(rows), dtype=torch.int32))

    def read_features(self, file: str, item_ids: Sequence[str]) -> None:
        """Read the features of the items 1, 2, ... from a CSV file with a column `item`."""
        given, known = lines_of_items(file, "model.feature_file", list(self.rows), item_ids)
        first = 1
        self.values.zero_()
        for number, (name, size) in enumerate(self.rows.items()):
            texts = given[name].to_list()
            for place, line in known:
                found = [text for text in map(str.strip, (texts[line] or "").split("|")) if text][:VALUES]
                for slot, text in enumerate(found, start=VALUES * number):
                    self.values[place, slot] = first + digest_of(text) % size
            first += size
        self.features_read = True

    def forward(self, ids: Tensor) -> Tensor:
        items = super().forward(ids)
        if self.features is None:
            return items
        if self.training and not self.features_read:
            raise UserError(
                "the items' features have not been read: call model.embedding.read_features(file, item_ids) first"
            )
        return items + sum_of_vectors(self.features, self.values[ids].long())


def table_of_values(rows: Mapping[str, int], dim: int) -> nn.Embedding:
    """Return a table with the rows of all columns, one column after the other from row 1; it starts at 0."""
    table = nn.Embedding(1 + sum(rows.values()), dim, padding_idx=0)
    nn.init.zeros_(table.weight)
    return table


def sum_of_vectors(table: nn.Embedding, values: Tensor) -> Tensor:
    """Return the sum of the vectors of values (..., S), which are rows of the table; row 0 adds nothing: (..., d)."""
    added: Tensor = (table(values) * (values != 0).unsqueeze(-1)).sum(-2)
    return added


def lines_of_items(
    file: str, setting: str, columns: Sequence[str], item_ids: Sequence[str]
) -> tuple[pl.DataFrame, list[tuple[int, int]]]:
    """Read columns of text from a CSV file with a column `item`.

    Return them with the place of each item 1, 2, ... that the file has, and its line.
    """
    given, lines = file_of_items(file, setting, columns)
    known = [(place, lines[raw]) for place, raw in enumerate(item_ids, start=1) if raw in lines]
    if not known:
        raise UserError(f"{setting} {file}: it has none of the items in the data")
    return given, known


def file_of_items(file: str, setting: str, columns: Sequence[str] | None = None) -> tuple[pl.DataFrame, dict[str, int]]:
    """Read columns of text, or all, from a CSV file with a column `item`, and the line of each item."""
    where, wanted = f"{setting} {file}", [ITEM, *(columns or ())]
    try:
        refuse_other_encodings(Path(file))
        given = pl.read_csv(Path(file), columns=None if columns is None else wanted, infer_schema=False)
        given = given.select(wanted if columns is not None else [ITEM, pl.exclude(ITEM)])
    except (OSError, pl.exceptions.PolarsError) as error:
        if isinstance(error, pl.exceptions.PolarsError) and "utf-8" in str(error).lower():
            raise not_utf8(Path(file)) from None
        why = getattr(error, "strerror", None) or first_line(error)
        named = f"column{'s' * (len(wanted) > 1)} {', '.join(wanted)}"
        raise UserError(f"{where}: give a CSV file with the {named}: {why}") from None
    lines: dict[str, int] = {}
    for line, raw in enumerate(normal_texts(given[ITEM].to_list())):
        if raw is None:
            raise UserError(f"{where}: row {line + 1} below the header has no item: give it one, or delete it")
        if raw in lines:
            rows = f"rows {lines[raw] + 1} and {line + 1} below the header"
            raise UserError(f"{where}: it has two lines of one item, '{raw}' ({rows}): give each item one")
        lines[raw] = line
    return given, lines


def refuse_half(features: Any, file: str | None) -> None:
    """Refuse features without a file, and a file without features."""
    if (features is None) != (file is None):
        given, missing = ("features", "feature_file") if file is None else ("feature_file", "features")
        raise UserError(f"model.{given} is given without model.{missing}: give both, or leave both out")


# Vectors of an event's context, such as its device or hour.


class ContextVectors(nn.Module):
    """One table for all columns of context; an event's vector is the sum of its values' vectors, which start at 0.

    >>> vectors = ContextVectors({"device": 5, "hour": 24}, dim=2)
    >>> vectors(torch.tensor([[[3, 24], [0, 1]]])).shape, vectors.table.weight.shape
    (torch.Size([1, 2, 2]), torch.Size([30, 2]))
    """

    def __init__(self, rows: Mapping[str, int], dim: int) -> None:
        super().__init__()
        if not rows or any(isinstance(size, bool) or size < 1 for size in rows.values()):
            raise UserError(f"model.context_rows is {dict(rows)}: give each column of the context at least 1 row")
        self.table = table_of_values(rows, dim)
        self.before: Tensor  # (C,) rows of the columns before each
        self.register_buffer("before", torch.tensor([0, *accumulate(rows.values())][:-1]), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the vectors (B, T, d) of values (B, T, C), which count from 1; 0 is a missing one and adds nothing."""
        return sum_of_vectors(self.table, (values + self.before) * (values != 0))


Lookup = TypeVar("Lookup", bound=nn.Embedding | nn.EmbeddingBag)


def new_table(kind: type[Lookup], rows: int, dim: int, memory_map: str | None, **options: Any) -> Lookup:
    """Return kind(rows, dim, **options), its weight in a file in the folder `memory_map` if there is one."""
    if memory_map is None:
        return kind(rows, dim, **options)
    made = kind(rows, dim, _weight=in_folder(memory_map, rows, dim), **options)
    made.reset_parameters()  # draws the same values as in memory
    return made


def copied_table(table: nn.Embedding, memory_map: str | None) -> nn.Embedding:
    """Return a second trained table with the same initial values."""
    with torch.no_grad():
        if memory_map is None:
            weight = table.weight.clone()
        else:
            weight = in_folder(memory_map, *table.weight.shape).copy_(table.weight)
    return nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=table.padding_idx)


# Tables in files: those that are larger than memory.


def in_folder(folder: str, rows: int, dim: int) -> Tensor:
    """Return memory for a table in a new file in this folder."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return file_tensor(folder, (rows, dim))
    except OSError as error:
        raise UserError(
            f"model.memory_map is {folder}, where no file of {4e-9 * rows * dim:.3g} GB can be made: "
            f"{error.strerror or error}; give a folder on a disk with room"
        ) from None
