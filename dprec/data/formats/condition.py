"""The condition, in SQL on a log's columns, that says which of its rows to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from dprec.errors import UserError, first_line


@dataclass(frozen=True)
class Condition:
    """Such as `rating >= 4 and kind = 'view'`. If a value is missing, the condition is unknown and the row is left out.

    >>> where = Condition.read("rating >= 4", Path("log.csv"), ["user", "rating"], lambda: {"rating": pl.Int64()})
    >>> where.holds(pl.DataFrame({"rating": ["5", "3.5", None]})).to_list()
    [True, False, None]
    """

    text: str
    part: Path
    expression: pl.Expr
    types: Mapping[str, pl.DataType]  # of the columns it names

    @classmethod
    def read(
        cls, text: str, part: Path, names: Sequence[str], types: Callable[[], Mapping[str, pl.DataType]]
    ) -> Condition:
        try:
            expression = pl.sql_expr(text)
            columns = _columns(expression)
        except pl.exceptions.PolarsError as error:
            reason = first_line(error)
            raise UserError(f"data.where is '{text}': {reason}; write it as in SQL, names in double quotes") from None
        unknown = [name for name in columns if name not in names]
        if unknown or not columns:
            problem = f"names no column '{unknown[0]}'" if unknown else "names no column"
            raise UserError(f"data.where is '{text}' and {part} {problem}: its columns are {', '.join(names)}")
        found = types()
        # Numbers in text are compared as float64: the first rows do not show whether later ones have fractions.
        kinds = {name: pl.Float64() if found[name].is_numeric() else found[name] for name in columns if name in found}
        return cls(text, part, expression, kinds)

    @property
    def columns(self) -> list[str]:
        return _columns(self.expression)

    def holds(self, batch: pl.DataFrame) -> pl.Series:
        """The rows of a batch for which the condition holds."""
        text = [name for name in self.columns if batch.schema[name] == pl.String and name in self.types]
        try:
            read = batch.with_columns(pl.col(name).str.strip_chars().cast(self.types[name]) for name in text)
            found = read.select(self.expression.alias("holds"))["holds"]
        except pl.exceptions.PolarsError as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"data.where is '{self.text}', which fails on {self.part}: {reason}") from None
        if found.dtype != pl.Boolean:
            raise UserError(f"data.where is '{self.text}', which is not a condition: give one such as rating >= 4")
        return found


def _columns(expression: pl.Expr) -> list[str]:
    """The columns that a condition names, each once."""
    return list(dict.fromkeys(expression.meta.root_names()))
