from __future__ import annotations

from pathlib import Path

import pytest

from dprec.bench import main as bench
from dprec.benchmarks.processes import PROCESSES, TINY, Taken, _row
from tests.commands.support import strict


@pytest.mark.nightly
def test_every_number_of_processes_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert bench(["processes", "--quick", "--json", str(file)]) == 0
    rows: list[dict] = strict(file)  # type: ignore[assignment]
    assert [row["processes"] for row in rows] == list(PROCESSES)
    for row in rows:
        assert 0 < row["cpu_ms_per_step"] <= row["all_cpu_ms_per_step"]
    assert rows[0]["cpu_ms_per_step"] == rows[0]["all_cpu_ms_per_step"]


@pytest.mark.full
def test_seconds_of_a_step_are_the_clocks_and_those_of_the_busiest_process() -> None:
    row = _row(TINY, 2, {1: [Taken(4.0, [4.0])], 2: [Taken(2.5, [2.0, 1.5])]})
    assert (row["ms_per_step"], row["users_per_second"], row["ratio"]) == (1250.0, TINY.batch / 1.25, 1.6)
    assert (row["cpu_ms_per_step"], row["all_cpu_ms_per_step"]) == (1000.0, 1750.0)
