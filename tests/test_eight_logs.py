"""The invented logs have the structure that their names promise, and no run is trained twice."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eight_logs", ROOT / "docs" / "studies" / "eight_logs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stopped_study_goes_on_and_compares_by_gain(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, runs, trained = tmp_path / "logs", tmp_path / "runs.jsonl", []
    logs.mkdir()
    for name in ("bots", "drift"):
        (logs / f"{name}.txt").write_text("")

    def run(log: Path, recipe: str, epsilon: str, seed: str) -> dict[str, float]:
        trained.append((log.stem, recipe, seed))
        reached = {"one": 0.1, "two": 0.2}[recipe] + 0.02 * int(seed)
        return {"ndcg@10": reached, "popularity_ndcg@10": 0.05 if log.stem == "bots" else 0.025}

    monkeypatch.setattr(study, "run", run)
    study.train(logs, runs, ["one"], ["5"], ["0"])
    study.train(logs, runs, ["one", "two"], ["5"], ["0", "1"])
    assert sorted(trained) == sorted({*trained})
    assert len(runs.read_text().splitlines()) == len(trained) == 8
    assert all("test" not in key for line in runs.read_text().splitlines() for key in json.loads(line))
    study.table(runs)
    lines = capsys.readouterr().out.splitlines()
    assert "| 5 | `one` | 11.00 | 11.00 | 3.11 times |" in [" ".join(line.split()) for line in lines]  # √(2.2 · 4.4)
