"""Whether a row is used follows from that row alone."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from dprec.data.formats.wanted import Condition
from dprec.errors import UserError

NAMES = ["user", "a", "b", "kind"]


def condition(text: str) -> Condition:
    return Condition.read(text, Path("log.csv"), NAMES, dict)


@pytest.mark.parametrize("where", ["a >= b", "a = b", "a < b", "a >= 9.5", "kind <> '7'", "a >= 9 and kind = '7'"])
def test_no_odd_row_changes_what_holds_for_others(where: str) -> None:
    rows = pl.DataFrame({"user": "u", "a": ["9", "10", "11.0"], "b": ["10"] * 3, "kind": ["7", "view", "7"]})
    alone = condition(where).holds(rows).to_list()
    assert None not in alone
    for odd in ("x", "", None, "true", "1e400"):
        more = pl.DataFrame({"user": "v", "a": odd, "b": odd, "kind": odd}, schema=dict.fromkeys(NAMES, pl.String))
        assert condition(where).holds(pl.concat([more, rows])).to_list()[1:] == alone, odd
        assert condition(where).holds(pl.concat([rows, more])).to_list()[:-1] == alone, odd


@pytest.mark.parametrize(
    "where",
    [
        *("a > AVG(a)", "COUNT(*) > 2 AND a > 1", "a = FIRST(a)", "ROW_NUMBER() OVER (ORDER BY a) > 1", "MAX(b) > 3"),
        *("a = ANY(b)", "a = SOME(b)", "a <> ANY(b)", "NOT (a = ANY(b))", "a < ALL(b)"),
    ],
)
def test_a_condition_on_several_rows_is_refused(where: str) -> None:
    with pytest.raises(UserError, match="looks at several rows at once"):
        condition(where)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("a IN (9, 10) AND kind LIKE 'v%'", [False, True, False]),
        ("LOWER(kind) = 'view' OR a BETWEEN 11 AND 12", [False, True, True]),
        ("CASE WHEN a > 10 THEN TRUE ELSE FALSE END", [False, False, True]),
        ("kind IS NOT NULL AND NOT a = 10", [True, False, True]),
        ("COALESCE(a, b) > 9 AND CAST(b AS INT) = 10", [False, True, True]),
        ("kind = '7'", [True, False, True]),
    ],
)
def test_what_looks_at_one_row_holds_or_not(where: str, holds: list[bool]) -> None:
    rows = pl.DataFrame({"user": "u", "a": ["9", "10", "11.0"], "b": ["10"] * 3, "kind": ["7", "view", "7"]})
    assert condition(where).holds(rows).to_list() == holds


def test_a_value_that_fails_ends_the_reading_and_reads_no_other_row_in_another_way() -> None:
    rows = pl.DataFrame({"user": "u", "a": ["9", "4"], "b": ["1", "x"], "kind": ["7", "view"]})
    with pytest.raises(UserError, match="fails on log.csv: conversion"):
        condition("CAST(kind AS INT) > 3 OR a = 9").holds(rows)
