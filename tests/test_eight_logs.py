"""The invented logs have the structure that their names promise, and no run is trained twice."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter, defaultdict
from itertools import pairwise
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


@pytest.fixture(scope="module")
def folder(study: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    study.invent(folder)
    return folder


def histories(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text().splitlines():
        user, item = line.split()
        found[user].append(item)
    return found


def followed(users: dict[str, list[str]]) -> float:
    """The share of events that are the most frequent successor of the item before, where that was met 50 times."""
    after: dict[str, Counter[str]] = defaultdict(Counter)
    for items in users.values():
        for one, other in pairwise(items):
            after[one][other] += 1
    often = [each for each in after.values() if each.total() >= 50]
    return sum(max(each.values()) for each in often) / sum(each.total() for each in often)


def repeated(users: dict[str, list[str]]) -> float:
    """The share of events whose item the user met before."""
    return sum(len(items) - len(set(items)) for items in users.values()) / sum(map(len, users.values()))


def test_items_follow_each_other(folder: Path) -> None:
    assert 0.38 < followed(histories(folder / "succession.txt")) < 0.48
    assert all(followed(histories(folder / f"{other}.txt")) < 0.2 for other in ("sessions", "drift"))


def test_users_go_back_to_items(folder: Path) -> None:
    assert 0.35 < repeated(histories(folder / "sessions.txt")) < 0.6


def test_items_are_forgotten(folder: Path) -> None:
    """Of the first tenth's hundred favourites hardly any is one in the last tenth."""
    lines = (folder / "drift.txt").read_text().splitlines()
    tenth = len(lines) // 10
    first, last = (Counter(line.split()[1] for line in part) for part in (lines[:tenth], lines[-tenth:]))
    assert not {item for item, _ in first.most_common(100)} & {item for item, _ in last.most_common(100)}


def test_bots_have_much_of_the_events(folder: Path) -> None:
    users = histories(folder / "bots.txt")
    events = sum(map(len, users.values()))
    assert len(users) == 603
    assert all(len(users[f"bot{number}"]) > 0.08 * events for number in range(3))


def test_logs_are_the_same_each_time(study: ModuleType, folder: Path, tmp_path: Path) -> None:
    study.invent(tmp_path)
    assert all((tmp_path / each.name).read_bytes() == each.read_bytes() for each in folder.iterdir())


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
