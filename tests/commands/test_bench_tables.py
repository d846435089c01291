"""The benchmarks of large tables run, and leave the rows that they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dprec.bench import main as bench
from dprec.benchmarks import lazydp
from dprec.benchmarks.table_work.noise import Sources

pytestmark = pytest.mark.full


def rows_of(tmp_path: Path, *argv: str) -> list[dict[str, object]]:
    file = tmp_path / "rows.json"
    assert bench([*argv, "--quick", "--json", str(file)]) == 0
    found: list[dict[str, object]] = json.loads(file.read_text())
    return found


def test_every_system_has_a_row_at_every_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(tmp_path, "lazydp")
    keys = {"table_gb", "rows", "batch", "pooling", "ms_per_step", "ratio_to_sgd", "ratio_spread", "embedding_ms"}
    for size, pooling, access in ((0.002, 1, "even"), (0.004, 1, "even"), (0.002, 10, "even"), (0.002, 1, "high skew")):
        case = (size, pooling, access)
        here = [row for row in rows if (row["table_gb"], row["pooling"], row["access"]) == case]
        all_of_them = case == (0.002, 1, "even")
        assert [row["system"] for row in here] == [s for s in lazydp.SYSTEMS if all_of_them or s not in lazydp.HOOKED]
        assert here[0]["ratio_to_sgd"] == 1
        assert all(keys | {"survivors"} <= row.keys() for row in here)
        eana = next(row for row in here if row["system"].startswith("EANA"))  # type: ignore[attr-defined]
        assert 0 < eana["survivors"] <= eana["rows"]  # type: ignore[operator]
    assert "LazyDP, noise replay" in capsys.readouterr().out


def test_some_sweeps_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert [case.access for case in lazydp.cases(["access"], quick=False)] == list(lazydp.ACCESS)
    assert len(lazydp.cases(lazydp.SWEEPS, quick=False)) == 3 + 2 + 3 + 3 + 3
    assert bench(["lazydp", "--quick", "--sweeps", "sises"]) == 2
    assert "--sweeps has 'sises': give some of sizes,batches,poolings,access,networks" in capsys.readouterr().err
    assert bench(["lazydp", "--quick", "--sweeps", "noise,sizes"]) == 2
    assert "noise alone" in capsys.readouterr().err


def test_normals_stand_beside_what_memory_takes(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "lazydp", "--sweeps", "noise", "--picture", str(tmp_path / "noise.png"))
    assert (tmp_path / "noise.png").stat().st_size
    for row in rows:
        base = next(r for r in rows if r["threads"] == row["threads"])
        assert row["of_memory"] == pytest.approx(row["ns"] / base["ns"])  # type: ignore[operator]
        assert row["millions_per_second"] == pytest.approx(1e3 / row["ns"])  # type: ignore[operator]
    assert [row["threads"] for row in rows[:2]] == [1, 2]


def test_each_source_of_normals_fills_all_of_its_memory() -> None:
    for name, where in Sources(torch.zeros(1024, 128)).steps():
        sources = Sources(torch.full((1024, 128), 1e-9))
        sources.steps()[name, where]()
        changed = (sources.numbers != torch.tensor(1e-9)).all(dim=1)
        assert changed[: len(sources.chunk)].all()
        assert where == "a cache" or changed.all()
        if "written" not in name and "scaled" not in name and "added" not in name:
            assert float(sources.chunk.std()) == pytest.approx(1, abs=0.02)


def test_other_networks_stand_beside_each_other(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "lazydp", "--sweeps", "networks")
    assert list(dict.fromkeys(row["network"] for row in rows)) == list(lazydp.NETWORKS)
    own = [row for row in rows if row["network"] == "RMC2"]
    assert [row["system"] for row in own] == ["SGD", "EANA (not private)", "LazyDP", "DP-SGD, fused"]
    assert {(row["pooling"], row["rows"]) for row in own} == {(80, 40 * round(0.002e9 / (40 * 32 * 4)))}


def test_adafest_stands_beside_dense_noise(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "adafest")
    assert [(row["rows"], row["system"]) for row in rows] == [
        (size, system) for size in (1_000, 10_000) for system in ("AdaFEST", "DP-SGD, fused")
    ]
    assert all(row["ms_per_step"] > 0 for row in rows)  # type: ignore[operator]
