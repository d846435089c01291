"""`dprec bench lazydp`: a row for each case and system, written as it is measured."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dprec.bench import main as bench
from dprec.benchmarks import lazydp
from dprec.benchmarks.report import Row
from tests.commands.support import strict

FITTING = ["EANA (not private)", "LazyDP", "DP-SGD, fused", "DP-SGD, unfused"]

pytestmark = pytest.mark.full


def test_every_system_has_a_row_in_every_case(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "rows.json", tmp_path / "picture.png"
    assert bench(["lazydp", "--quick", "--json", str(file), "--picture", str(picture)]) == 0
    rows: list[Row] = strict(file)  # type: ignore[assignment]
    for case in lazydp.cases(lazydp.SWEEPS, quick=True):
        here = [row for row in rows if case.row.items() <= row.items()]
        assert [row["system"] for row in here] == FITTING
        assert all(row["ratio_to_sgd"] > 0 and row["ms_per_step"] > 0 < row["embedding_ms"] for row in here)
    own = [row for row in rows if row["network"] == "RMC2"]
    assert {(row["pooling"], row["rows"]) for row in own} == {(80, 40 * round(0.002e9 / (40 * 32 * 4)))}
    assert picture.stat().st_size > 5_000


def test_some_sweeps_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert [case.access for case in lazydp.cases(["access"], quick=False)] == list(lazydp.ACCESS)
    assert len(lazydp.cases(lazydp.SWEEPS, quick=False)) == 3 + 2 + 3 + 3 + 3
    assert bench(["lazydp", "--quick", "--sweeps", "sises"]) == 2
    assert "--sweeps has 'sises': give some of sizes,batches,poolings,access,networks" in capsys.readouterr().err


def killed_at_lazydp(case: lazydp.Case, system: str) -> Row:
    """In place of a measurement that takes more memory than there is."""
    if system == "LazyDP":
        os.kill(os.getpid(), signal.SIGKILL)
    found = {"rounds": 1, "ms_per_step": 2.0, "ratio_to_sgd": 1.5, "ratio_spread": [1.0, 2.0], "embedding_ms": 1.0}
    return {**case.row, "system": system, "why_not": None, **found}


def test_rows_outlive_a_process_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lazydp, "measured", killed_at_lazydp)
    monkeypatch.setattr(lazydp, "cases", lambda sweeps, quick: [lazydp.Case(4.0)])
    seen = []
    monkeypatch.setattr("dprec.benchmarks.report.write_json", lambda rows, file: seen.append(len(rows)))
    assert bench(["lazydp", "--json", str(tmp_path / "rows.json")]) == 0
    assert seen == [1, 2, 3], "each row is written as it is measured"
    shown = " ".join(capsys.readouterr().out.split())
    assert "its process was killed, most likely for its memory" in shown
    assert "DP-SGD, fused" in shown
