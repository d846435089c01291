"""What is asked of a log: which of its columns hold users, items and times, and which rows to use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dprec.errors import UserError
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
# The setting that names a role's column, by the first word of the role, where it is not `data.<role>_column`.
_SETTINGS = {"Number": "numbers", "Category": "categories", "kept": ""}


@dataclass
class Wanted:
    """Columns by their roles, and which rows to use.

    Roles user, item and time whose column is not named are found by their names. `NamedColumns` guesses none.
    """

    given: Mapping[str, str | None]
    where: str | None = None
    columns: dict[str, str] = field(default_factory=dict)  # the columns of the first part, and so of all
    partition: Mapping[str, str | None] = field(default_factory=dict)  # columns that the part's folders hold, as day=1
    lists_are_events = True  # a row's list is as many events; else it is one value

    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        """The columns of a part, which must be those of the parts before it."""
        asked = [name for name in self.partition if name in self.given.values() and name not in names]
        self.columns = self.columns or _guessed(part, [*names, *asked], self.given)
        for role, name in self.columns.items():
            if name not in names and name not in asked:
                raise UserError(
                    f"{part} has no column '{name}', the {role} in another part: give all parts the same columns"
                )
        return self.columns


class NamedColumns(Wanted):
    """Columns of which none is guessed, such as those of clicks and texts; a list is one value."""

    lists_are_events = False

    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        self.columns = {role: name for role, name in self.given.items() if name is not None}
        asked: dict[str, list[str]] = {}
        for role, name in self.columns.items():
            if name not in names and name not in self.partition:
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
    """Whether a column's name says that it holds users, items or times."""
    return plain(name) in GUESSES[role]


def plain(name: str) -> str:
    """A name without what differs between ways to write it."""
    return name.lower().translate(str.maketrans("", "", "_- "))


def _guessed(part: Path, names: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The column of each role, as the user says or by its name; no time if no column looks like one."""
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
                if others and role == "user":  # it decides whose data is private
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
