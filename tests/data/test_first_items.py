"""Data of a model that is trained further: old items keep their numbers, new ones follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprec.data import Sequences

LOG = ["ann b", "ann a", "ann d", "bob b", "bob d", "bob c"]


def data(folder: Path, **settings: Any) -> Sequences:
    (folder / "log.txt").write_text("\n".join(LOG))
    made = Sequences("file", path=str(folder / "log.txt"), batch_size=1, validation=False, **settings)
    made.begin_with(["z", "c", "b"])
    return made


def test_old_items_keep_their_numbers_whether_they_are_in_the_log_or_not(tmp_path: Path) -> None:
    found = data(tmp_path, min_events=0)
    assert found.catalogue_ids == ["z", "c", "b", "a", "d"]
    histories = found.load().histories
    assert [histories.of(user).tolist() for user in (0, 1)] == [[3, 4, 5], [3, 5, 2]]
    assert found.assumptions[-1].endswith("without noise, after those of the run before")


def test_they_pass_the_filter_that_new_ones_have_to_pass(tmp_path: Path) -> None:
    """By the number of users: c had enough some day, a has only ann."""
    found = data(tmp_path, min_events=2)
    assert found.catalogue_ids == ["z", "c", "b", "d"]
    assert found.load().histories.of(1).tolist() == [3, 4, 2]


def test_they_stand_before_a_list_and_before_chosen_ones(tmp_path: Path) -> None:
    (tmp_path / "items.txt").write_text("a\nb\n")
    assert data(tmp_path, min_events=0, catalogue=str(tmp_path / "items.txt")).catalogue_ids == ["z", "c", "b", "a"]
    chosen = data(tmp_path, min_events=0, catalogue="private")
    chosen.choose(["d", "b"])
    assert chosen.catalogue_ids == ["z", "c", "b", "d"]
    again = data(tmp_path, min_events=0, catalogue="private")
    again.choose(chosen.catalogue_ids)  # of a resumed run, which keeps all of them
    again.load_state_dict(chosen.state_dict())
    assert again.catalogue_ids == chosen.catalogue_ids
