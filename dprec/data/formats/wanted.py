"""The columns of a log that are read (users, items, times, ...), and the rows, by a condition in SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from operator import and_
from pathlib import Path
from typing import Any

import polars as pl

from dprec.errors import UserError, first_line
from dprec.notices import say

# Names of these columns in logs, in order of preference, in lower case and without `_`, `-` and spaces.
GUESSES = {
    "user": ("userid", "user", "uid", "reviewerid", "customerid", "visitorid", "memberid"),
    "item": ("itemid", "item", "iid", "movieid", "productid", "parentasin", "asin", "bookid", "trackid"),
    "time": ("timestamp", "time", "ts", "unixreviewtime", "datetime", "date", "eventtime"),
}
BY_ROW = "rows"  # the time column of a log whose rows are in time order
_OF_DAY = ("time", "eventtime")  # may be a time of day without the day
_DAYS = ("date", "day", "eventdate")
# The setting that names a role's column, by the first word of the role, if it is not `data.<role>_column`.
_SETTINGS = {"Number": "numbers", "Category": "categories", "kept": ""}


@dataclass
class Wanted:
    """Columns by their roles, and which rows to use.

    Roles user, item and time whose column is not named are found by their names. `NamedColumns` guesses none.
    """

    given: Mapping[str, str | None]
    where: str | None = None
    columns: dict[str, str] = field(default_factory=dict)  # the columns of the first part, and so of all

    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        """Return the columns of a part; they must be those of earlier parts."""
        self.columns = self.columns or _guessed(part, names, self.given)
        for role, name in self.columns.items():
            if name not in names:
                raise UserError(
                    f"{part} has no column '{name}', the {role} in another part: give all parts the same columns"
                )
        return self.columns


class NamedColumns(Wanted):
    """Columns that are never guessed, such as those of clicks and texts."""

    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        self.columns = {role: name for role, name in self.given.items() if name is not None}
        asked: dict[str, list[str]] = {}
        for role, name in self.columns.items():
            if name not in names:
                kind = role.partition(" ")[0]
                setting = _SETTINGS.get(kind, f"{kind}_column")
                if not any(f"'{name}'" in others for others in asked.values()):
                    asked.setdefault(setting, []).append(f"'{name}'")
        if asked:
            missing = [name.strip("'") for others in asked.values() for name in others]
            alike = [name for name in names if plain(name) in map(plain, missing)]
            said = ", ".join(", ".join(names) + (f" (data.{of})" if of else "") for of, names in asked.items())
            raise UserError(
                f"{part} has no {'column' if len(missing) == 1 else 'columns'} {said}: its columns are "
                f"{', '.join(names)}{'; did you mean ' + ', '.join(alike) + '?' if alike else ''}"
            )
        return self.columns


def setting_of(role: str) -> str:
    """The setting that names a role's column."""
    return f"data.{role}_column" if role in GUESSES else "data.context"


def looks_like(role: str, name: str) -> bool:
    """Whether a column's name suggests that it holds users, items or times."""
    return plain(name) in GUESSES[role]


def plain(name: str) -> str:
    """Return a name in lower case, without `_`, `-` and spaces."""
    return name.lower().translate(str.maketrans("", "", "_- "))


def _guessed(part: Path, names: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Return the column of each role, as given or by its name; no time if no column looks like one."""
    found = {role: _column(part, names, role, column) for role, column in wanted.items()}
    columns = {role: name for role, name in found.items() if name is not None}
    if columns["user"] == columns["item"]:
        raise UserError(
            f"{part}: '{columns['user']}' would be both user and item: set data.user_column and item_column"
        )
    return columns


def _column(part: Path, names: Sequence[str], role: str, wanted: str | None) -> str | None:
    known = {plain(name): name for name in reversed(names)}
    if wanted is not None:
        if wanted in names:
            return wanted
        if role == "time" and wanted == BY_ROW:
            return None
        problem = f"{part} has no column '{wanted}' ({setting_of(role)})"
    else:
        for guess in GUESSES[role]:
            if guess in known:
                day = next((known[day] for day in _DAYS if day in known), None)
                if guess in _OF_DAY and day is not None:
                    raise UserError(
                        f"{part} has '{day}' and '{known[guess]}': set data.time_column to the right one, "
                        "or join day and time of day in one column"
                    )
                others = [f"'{known[other]}'" for other in GUESSES[role] if other in known and other != guess]
                if others and role == "user":  # it decides whose data is protected
                    say(
                        f"{part}: '{known[guess]}' is taken for the user, not {' or '.join(others)}: if that is wrong, "
                        f"set {setting_of(role)}"
                    )
                return known[guess]
        problem = f"{part} has no column that looks like the {role}: set data.{role}_column"
        if role == "time":
            say(f"{problem}; without it, the order of the rows counts as their order in time")
            return None
    headless = any(re.fullmatch(r"-?\d+(\.\d+)?", name.strip()) for name in names)
    hint = "; is there a header line?" if headless else ""
    raise UserError(f"{problem}; its columns are {', '.join(names)}{hint}")


# Types that a text may have in a condition, the likeliest first.
_KINDS: tuple[pl.DataType, ...] = (pl.Float64(), pl.Boolean(), pl.String())


@dataclass(frozen=True)
class Condition:
    """Such as `rating >= 4 and kind = 'view'`. If a value is missing, the condition is unknown and the row is left out.

    Whether it holds for a row depends on that row alone; otherwise one person would decide which rows of others are
    used. So a text counts as a number if it is one, whatever other rows contain. If a value does not fit the condition,
    such as a word for `>= 4`, the condition is unknown.

    >>> where = Condition.read("rating >= 4", Path("log.csv"), ["user", "rating"], dict)
    >>> where.holds(pl.DataFrame({"rating": ["5", "3.5", None, "good"]})).to_list()
    [True, False, None, None]
    """

    text: str
    part: Path
    expression: pl.Expr
    types: Mapping[str, pl.DataType]  # of the columns it names, if the format or the folder states them

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
        if not _of_one_row(json.loads(expression.meta.serialize(format="json"))):
            raise UserError(
                f"data.where is '{text}', which looks at several rows at once: give a condition on the values of "
                "one row"
            )
        found = types()
        kinds = {name: pl.Float64() if found[name].is_numeric() else found[name] for name in columns if name in found}
        return cls(text, part, expression, kinds)

    @property
    def columns(self) -> list[str]:
        return _columns(self.expression)

    def holds(self, batch: pl.DataFrame) -> pl.Series:
        """The rows of a batch for which the condition holds."""
        text = [name for name in self.columns if batch.schema[name] == pl.String]
        read = batch.select(self.columns).with_columns(_without_edges(name) for name in text)
        try:
            read = read.with_columns(pl.col(name).cast(self.types[name]) for name in text if name in self.types)
            free = [name for name in text if name not in self.types]
            if not free or not len(read):
                return self._truth(read)
            return self._of_likeliest(read, free)
        except pl.exceptions.PolarsError as error:
            raise self._failure(error) from None

    def _of_likeliest(self, read: pl.DataFrame, free: Sequence[str]) -> pl.Series:
        """Evaluate each row with the likeliest types of its own values for which the condition is valid."""
        typed = {(name, kind): _as(read[name], kind) for name in free for kind in _KINDS}
        fits = {(name, kind): own.is_not_null() | read[name].is_null() for (name, kind), own in typed.items()}
        found = pl.Series("holds", [None], dtype=pl.Boolean).new_from_index(0, len(read))
        left, problem = found.is_null(), None
        for kinds in product(_KINDS, repeat=len(free)):
            typing = list(zip(free, kinds, strict=True))
            rows = reduce(and_, map(fits.__getitem__, typing), left)
            if not rows.any():
                continue
            own = read.with_columns(typed[each].alias(each[0]) for each in typing).filter(rows)
            try:
                self._truth(own.clear())  # decides for all rows alike: a value that fails ends the reading
            except UserError as error:
                problem = problem or error
            except pl.exceptions.PolarsError as error:
                problem = problem or self._failure(error)
            else:
                found, left = found.scatter(rows.arg_true(), self._truth(own)), left & ~rows
        if problem is not None and left.all():
            raise problem
        return found

    def _truth(self, rows: pl.DataFrame) -> pl.Series:
        found = rows.select(self.expression.alias("holds"))["holds"]
        if found.dtype != pl.Boolean:
            raise UserError(f"data.where is '{self.text}', which is not a condition: give one such as rating >= 4")
        return found

    def _failure(self, error: Exception) -> UserError:
        reason = " ".join(str(error).split())[:160]
        if "date/datetime/time" in reason:  # polars reports this in Python's words
            reason = "it compares a time with text: write the text as DATE '2024-03-01'"
        return UserError(f"data.where is '{self.text}', which fails on {self.part}: {reason}")


def _without_edges(name: str) -> pl.Expr:
    """A text without white space at its ends; an empty one is a missing value, as it is without quotes."""
    text = pl.col(name).str.strip_chars()
    return pl.when(text != "").then(text).alias(name)


def _as(text: pl.Series, kind: pl.DataType) -> pl.Series:
    """Convert texts to this type; null if a text does not fit."""
    if kind == pl.Boolean:
        return text.replace_strict({"true": True, "false": False}, default=None, return_dtype=kind)
    return text.cast(kind, strict=False)


_NODES = {"BinaryExpr", "Cast", "Ternary", "Alias", "Function"}
_OF_EACH = {
    *("StringExpr", "TemporalExpr", "Coalesce", "Abs", "Sign", "Negate", "Round", "RoundSF", "Floor", "Ceil", "Pow"),
    *("MinHorizontal", "MaxHorizontal", "Log", "Exp", "Trigonometry"),
}
_OF_EACH_TRUTH = {"IsNull", "IsNotNull", "IsIn", "IsBetween", "Not", "IsNan", "IsNotNan", "IsFinite", "IsInfinite"}

_OF_EACH_SQL = {"Binary", "IsIn", "Round", "ToFloat"}


def _of_one_row(node: Any) -> bool:
    """Whether an expression, as polars writes it, has only operations that work row by row."""
    if not isinstance(node, dict):
        return False  # such as "Len"
    ((kind, given),) = node.items()
    if kind in ("Column", "Literal"):
        return True
    if kind not in _NODES:
        return False
    if kind == "Alias":
        return _of_one_row(given[0])
    if kind != "Function":
        fields = {"BinaryExpr": ("left", "right"), "Cast": ("expr",), "Ternary": ("predicate", "truthy", "falsy")}
        return all(_of_one_row(given[field]) for field in fields[kind])
    name, how = (
        next(iter(given["function"].items())) if isinstance(given["function"], dict) else (given["function"], "")
    )
    told = next(iter(how)) if isinstance(how, dict) else how
    among = {"Boolean": _OF_EACH_TRUTH, "Sql": _OF_EACH_SQL}.get(name)
    fine = name in _OF_EACH and told != "ConcatVertical" if among is None else told in among
    if told == "IsIn":  # SQL's ANY looks at a column as a whole
        fine &= all(map(_is_constant, given["input"][1:]))
    return fine and all(map(_of_one_row, given["input"]))


def _is_constant(node: Any) -> bool:
    return isinstance(node, dict) and ("Literal" in node or _is_constant(node.get("Cast", {}).get("expr")))


def _columns(expression: pl.Expr) -> list[str]:
    """The columns that a condition names, each once."""
    return list(dict.fromkeys(expression.meta.root_names()))
