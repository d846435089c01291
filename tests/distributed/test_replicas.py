"""Several processes train as one does: the same steps, the same noise, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dprec.distributed.ranks import Ranks
from tests.distributed import work
from tests.once import once, shared_folder

Answers = list[dict[str, Any]]
CLOSE = 2e-5  # what float32 rounding of users' gradients in other micro-batches may come to in six steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "replicas")


@pytest.fixture(scope="module")
def saved(folder: Path) -> dict[str, Any]:
    """Runs of one process, saved halfway."""

    def trained(name: str) -> dict[str, Any]:
        return work.trained(name, 1, keep=folder / f"{name}, alone.ckpt")

    return once(folder / "saved", lambda: {name: trained(name) for name in work.RESUMED})


@pytest.fixture(scope="module")
def two(folder: Path, saved: dict[str, Any]) -> Answers:
    once(folder / "two", lambda: work.start(work.everything, 2, folder))
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one["state"].keys() == other["state"].keys()
    return max(float((value - other["state"][name]).abs().max()) for name, value in one["state"].items())


@pytest.mark.full
@pytest.mark.parametrize("name", work.RUNS)
def test_two_processes_end_where_one_does(two: Answers, saved: dict[str, Any], name: str) -> None:
    alone = saved.get(name) or work.trained(name, 1)
    assert furthest(two[0][name], two[1][name]) == 0
    assert furthest(alone, two[0][name]) < CLOSE
    for answers in two:
        assert (answers[name]["steps"], answers[name]["spent"]) == (work.STEPS, alone["spent"])


@pytest.mark.full
@pytest.mark.parametrize("name", work.RESUMED)
def test_a_run_goes_on_with_another_number_of_processes(
    two: Answers, saved: dict[str, Any], folder: Path, name: str
) -> None:
    """Saved by one and resumed by two, and the other way round: the same steps, the same ledger, the same end."""
    for ends in (two[0][f"{name}, resumed"], work.trained(name, 1, resume=folder / f"{name}.ckpt")):
        assert furthest(saved[name], ends) < CLOSE
        assert (ends["steps"], ends["spent"]) == (work.STEPS, saved[name]["spent"])


@pytest.mark.full
def test_a_resumed_run_has_fresh_noise(two: Answers, folder: Path) -> None:
    """Whoever resumes it: from one checkpoint no two runs have the same noise, nor that of the run that goes on."""
    ends = [two[0]["fresh"], *(work.fresh(1, resume=folder / "fresh.ckpt") for _ in range(2))]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert furthest(ends[one], ends[other]) > 10 * CLOSE
        assert ends[one]["spent"] == ends[other]["spent"]


@pytest.mark.full
def test_without_privacy_two_processes_end_where_one_does(two: Answers) -> None:
    alone = work.fitted(work.histories(), work.GRU, work.RECURRENT, None, 1)
    assert furthest(two[0]["plain"], two[1]["plain"]) == 0
    assert furthest(alone, two[0]["plain"]) < CLOSE


@pytest.mark.full
def test_with_secret_draws_and_noise_all_processes_have_one_model(two: Answers) -> None:
    assert furthest(two[0]["secret"], two[1]["secret"]) == 0


@pytest.mark.full
def test_noise_is_added_once(two: Answers) -> None:
    """Of standard deviation 2; of each process's own it would be 2.83, of a part of it 1.41."""
    assert torch.equal(two[0]["noise"], two[1]["noise"])
    assert 1.94 < float(two[0]["noise"].std()) < 2.06


@pytest.mark.full
def test_it_does_not_matter_whose_a_user_is(two: Answers) -> None:
    alone = work.released(Ranks(), [work.users()], sigma=1.0, size=6, seed=3)
    for name in ("in turns", "all on the first", "all on the last"):
        for answers in two:
            assert torch.allclose(answers[name], alone, atol=1e-6)


@pytest.mark.full
def test_a_user_moves_the_sum_by_at_most_the_clipping_norm_whoever_is_where(two: Answers) -> None:
    exact = {name: two[0][f"{name}, exact"] for name in work.dealt(2)}
    assert 0.99 < float((exact["in turns"] - exact["one fewer"]).norm()) <= 1 + 1e-6
    assert 0.99 < float((exact["all on the first"] - exact["one fewer"]).norm()) <= 1 + 1e-6
    assert float(exact["nobody"].abs().max()) == 0


def same(found: Any, want: Any) -> bool:
    """Whether figures are equal, except for the order in which they were added up."""
    if isinstance(want, dict):
        return found.keys() == want.keys() and all(same(found[name], want[name]) for name in want)
    if isinstance(want, list):
        return len(found) == len(want) and all(map(same, found, want))
    return bool(found == (pytest.approx(want, rel=1e-9) if isinstance(want, float) else want))


@pytest.mark.full
@pytest.mark.parametrize("name", work.JUDGED)
def test_held_out_users_are_judged_together(two: Answers, name: str) -> None:
    """The means of all of them, in each process, also where it had none to look at."""
    alone = work.judged(name, Ranks())
    for answers in two:
        found = answers[f"{name}, judged"]
        assert found.keys() == alone.keys()
        for metric, value in alone.items():
            assert same(found[metric], value), metric


@pytest.mark.full
def test_processes_that_differ_stop_all(two: Answers) -> None:
    for answers in two:
        assert answers["different"] == "UserError: the 2 processes of the run differ"
        assert answers["same"] == ""


@pytest.mark.full
def test_a_key_is_that_of_the_first_process(two: Answers) -> None:
    assert all(answers["shared"] for answers in two)


@pytest.mark.nightly
def test_four_processes_end_where_one_does(tmp_path: Path) -> None:
    names = list(work.RUNS)
    work.start(work.some, 4, tmp_path, names)
    four = [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in range(4)]
    for name in names:
        alone = work.trained(name, 1)
        assert all(furthest(four[0][name], other[name]) == 0 for other in four[1:])
        assert furthest(alone, four[0][name]) < CLOSE
