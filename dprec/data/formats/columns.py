"""Which columns of a table hold users, items and times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


def choose_columns(part: Path, names: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The column of each role, as the user says or by its name; no time if no column looks like one."""
    found = {role: _column(part, names, role, column) for role, column in wanted.items()}
    columns = {role: name for role, name in found.items() if name is not None}
    if columns["user"] == columns["item"]:
        raise UserError(
            f"{part}: '{columns['user']}' would be both user and item: set data.user_column and item_column"
        )
    return columns


def setting_of(role: str) -> str:
    """The setting that names a role's column."""
    return f"data.{role}_column" if role in GUESSES else "data.context"


def looks_like(role: str, name: str) -> bool:
    """Whether a column's name says that it holds users, items or times."""
    return plain(name) in GUESSES[role]


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
                        f"{part} has '{day}' and '{known[guess]}': set data.time_column to the right one; "
                        "if one is the day and the other the time of day, join them in one column"
                    )
                others = [f"'{known[other]}'" for other in GUESSES[role] if other in known and other != guess]
                if others and role == "user":  # whose data is private hangs on it
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


def plain(name: str) -> str:
    """A name without what differs between ways to write it."""
    return name.lower().translate(str.maketrans("", "", "_- "))
