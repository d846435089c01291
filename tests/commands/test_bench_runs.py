from __future__ import annotations

from pathlib import Path

import pytest

from dprec.bench import main as bench
from dprec.benchmarks.common.timed_run import STAGES
from dprec.benchmarks.runs import SHORT, _row
from tests.commands.support import strict

pytestmark = pytest.mark.full


def test_every_stage_of_a_run_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert bench(["runs", "--quick", "--json", str(file)]) == 0
    rows: list[dict] = strict(file)  # type: ignore[assignment]
    assert [row["recipe"] for row in rows] == list(SHORT)
    for row in rows:
        assert all(row[stage] > 0 for stage in STAGES)
        assert sum(row[stage] for stage in STAGES) == pytest.approx(row["seconds"])
        assert 0 < row["training_share"] < 1


def test_a_row_is_of_the_middle_round() -> None:
    rounds = [{"clock": [1.0, 0, 0, seconds, 0, 0], "cpu": [seconds] * 6} for seconds in (9.0, 3.0, 4.0)]
    row = _row("quickstart", 2, rounds)
    assert (row["seconds"], row["spread"], row["train"], row["training_share"]) == (5.0, [4.0, 10.0], 4.0, 0.8)
