"""Tables whose rows lie with several processes: the same run as on one, the same noise, each row's once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dprec.distributed.ranks import Ranks
from dprec.sparsity.rows.tables import Table
from tests.distributed import sharded_work, work
from tests.once import once, shared_folder

Answers = list[dict[str, Any]]
CLOSE = 1e-5  # what float32 rounding of sums in another order may come to in six steps
CHOOSING = [name for name in sharded_work.RUNS if "LazyDP" not in name and "momentum" not in name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "sharded")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    """The runs in one process, with plain tables; noise of chosen rows is a function of the row there, too."""

    def trained(name: str) -> dict[str, Any]:
        return sharded_work.trained(name, 1, folder / f"{name}, alone.ckpt", folder / f"{name}, half alone.ckpt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "sharded", property(lambda table: True))
        return once(folder / "alone", lambda: {name: trained(name) for name in sharded_work.RUNS})


@pytest.fixture(scope="module")
def two(folder: Path, alone: Any) -> Answers:
    once(folder / "two", lambda: work.start(sharded_work.everything, 2, folder, list(sharded_work.RUNS)))
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def state(file: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return found


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


@pytest.mark.full
@pytest.mark.parametrize("name", sharded_work.RUNS)
def test_two_processes_end_where_one_does(two: Answers, alone: Any, folder: Path, name: str) -> None:
    ends, half = state(folder / f"{name}.ckpt"), state(folder / f"{name}, half.ckpt")
    assert furthest(state(folder / f"{name}, alone.ckpt"), ends) < CLOSE
    assert furthest(state(folder / f"{name}, half alone.ckpt"), half) < CLOSE
    tables = [key for key in ends if key.startswith("tables.tables")]
    assert max(float((ends[key] - half[key]).abs().max()) for key in tables) > 100 * CLOSE  # some rows move
    for answers in two:
        assert (answers[name]["steps"], answers[name]["spent"]) == (work.STEPS, alone[name]["spent"])


@pytest.mark.full
def test_a_table_that_is_too_large_is_made_whole_in_a_file_of_the_first_process(two: Answers, alone: Any) -> None:
    """For two checkpoints, momentum included; `test_two_processes_end_where_one_does` compares what they hold."""
    tables = len(alone[sharded_work.LARGE]["rows"])
    for name in sharded_work.RUNS:
        made = [answers[f"{name}, files"] for answers in two]
        assert made == ([4 * tables, 0] if name == sharded_work.LARGE else [0, 0])


@pytest.mark.full
def test_each_process_keeps_its_rows_alone(two: Answers, alone: Any) -> None:
    name = "DLRM with LazyDP"
    assert alone[name]["kept"] == alone[name]["rows"] == two[0][name]["rows"]
    for table, rows in alone[name]["rows"].items():
        assert [answers[name]["kept"][table] for answers in two] == [-(-rows // 2), rows // 2]


@pytest.mark.full
@pytest.mark.parametrize("name", sharded_work.RESUMED)
def test_a_run_goes_on_with_another_number_of_processes(
    two: Answers, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Saved by one and resumed by two, and the other way round, with what the optimizer keeps of each row."""
    monkeypatch.setattr(Table, "sharded", property(lambda table: True))
    ended = state(folder / f"{name}, alone.ckpt")
    assert furthest(ended, state(folder / f"{name}, resumed.ckpt")) < CLOSE
    half, file = folder / f"{name}, half.ckpt", folder / f"{name}, resumed alone.ckpt"
    assert sharded_work.trained(name, 1, file, resume=half)["steps"] == work.STEPS
    assert furthest(ended, state(file)) < CLOSE


@pytest.mark.full
def test_runs_check_themselves_and_are_judged_as_they_train(two: Answers) -> None:
    for answers in two:
        for run in ("checked", "at once, checked", "chosen, checked"):
            assert answers[run]["steps"] == 3
    assert two[0]["checked"]["judged"]["log_loss"] == two[1]["checked"]["judged"]["log_loss"] > 0


@pytest.mark.full
@pytest.mark.parametrize("strategy", sharded_work.ALL)
def test_it_does_not_matter_whose_a_user_is(two: Answers, strategy: str) -> None:
    exact = sharded_work.OneStep(sharded_work.strategy_of(strategy), Ranks(), 0.0).made([sharded_work.users()])
    assert float(exact.norm()) > 1
    for who in ("in turns", "all on the first", "all on the last"):
        assert torch.allclose(two[0][f"{strategy}, {who}"], exact, atol=1e-6)
    assert float(two[0][f"{strategy}, nobody"].abs().max()) == 0


@pytest.mark.full
@pytest.mark.parametrize("strategy", sharded_work.ALL)
def test_a_user_moves_the_sum_by_at_most_the_clipping_norm_whoever_is_where(two: Answers, strategy: str) -> None:
    fewer = two[0][f"{strategy}, one fewer"]
    for who in ("in turns", "all on the first", "all on the last"):
        assert 0.99 < float((two[0][f"{strategy}, {who}"] - fewer).norm()) <= 1 + 1e-6


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "std"), [("AdaFEST", 2 * 1.25**0.5), ("LazyDP", 2 * 3**0.5), ("LazyDP, at once", 2 * 3**0.5)]
)
def test_each_row_has_its_noise_once_whoever_owns_it(two: Answers, strategy: str, std: float) -> None:
    """AdaFEST pays for its choice by a larger multiplier; LazyDP's is that of three steps."""
    noise = two[0][f"{strategy}, noise"][1:]
    first, last = noise[:999], noise[999:1998]
    for own in (first, last):
        assert float(own.std()) == pytest.approx(std * (1 + 1e-4 + 3e-6 * 1000), rel=0.04)
    together = torch.corrcoef(torch.stack([first.flatten(), last.flatten()]))[0, 1]
    assert abs(float(together)) < 5 / first.numel() ** 0.5  # two owners never draw the same numbers
    shifted = torch.corrcoef(torch.stack([noise[:999].flatten(), noise[1000:1999].flatten()]))[0, 1]
    assert abs(float(shifted)) < 5 / first.numel() ** 0.5  # nor from the place in their own part


@pytest.mark.full
@pytest.mark.parametrize(("which", "options"), [("judged", {}), ("judged, one batch", sharded_work.FEW)])
def test_held_out_records_are_judged_together(two: Answers, which: str, options: dict[str, Any]) -> None:
    exact = sharded_work.judged(Ranks(), **options)
    for answers in two:
        assert answers[which] == {metric: pytest.approx(value, rel=1e-6) for metric, value in exact.items()}


@pytest.mark.full
def test_what_is_given_grows_with_the_rows_that_are_read_and_not_with_the_table(two: Answers) -> None:
    """Ids and rows to and fro, with padding's row, and how many they are: 3 numbers a row of 4 bytes, ids of 8."""
    for answers in two:
        assert answers["bytes"][1_000] == answers["bytes"][100_000]
    given = sum(answers["bytes"][1_000] for answers in two)
    fetched, summed, counts = 2 * 51 * (8 + 12), 2 * 50 * (8 + 12), 2 * 2 * 2 * 8
    assert given == fetched + summed + counts


@pytest.mark.full
def test_memory_falls_with_the_number_of_processes(tmp_path: Path) -> None:
    for processes in (1, 2):
        work.start(sharded_work.weighed, processes, tmp_path)
    whole, first, last = (float((tmp_path / name).read_text()) for name in ("0 of 1", "0 of 2", "1 of 2"))
    assert 55 < whole < 120
    assert 25 < min(first, last) <= max(first, last) < 0.7 * whole


@pytest.mark.full
def test_a_row_that_was_not_fetched_is_refused(two: Answers) -> None:
    said = "UserError: row {} of a sharded table lies with another process and was not fetched"
    assert two[0]["elsewhere"].startswith(said.format(35))
    assert two[1]["elsewhere"].startswith(said.format(5))


@pytest.mark.nightly
def test_four_processes_end_where_one_does(tmp_path: Path, alone: Any, folder: Path) -> None:
    names = list(sharded_work.RUNS)
    for name in sharded_work.RESUMED:
        shutil.copy(folder / f"{name}, half alone.ckpt", tmp_path)
    work.start(sharded_work.everything, 4, tmp_path, names)
    four = [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in range(4)]
    for name in names:
        assert furthest(state(folder / f"{name}, alone.ckpt"), state(tmp_path / f"{name}.ckpt")) < CLOSE
        assert sum(sum(answers[name]["kept"].values()) for answers in four) == sum(alone[name]["rows"].values())
    for name in sharded_work.RESUMED:
        assert furthest(state(folder / f"{name}, alone.ckpt"), state(tmp_path / f"{name}, resumed.ckpt")) < CLOSE
