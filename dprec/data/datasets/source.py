"""From the name of a dataset to its events: a file, the MovieLens releases, Amazon games, or invented histories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dprec.data.datasets import movielens
from dprec.data.logs.histories import Interactions
from dprec.data.logs.parts import OnMissing, Source, holds_parts, refuse_unknown, stand_in
from dprec.errors import UserError

Dataset = Literal[
    "file",
    "synthetic",
    "movielens-100k",
    "movielens-1m",
    "movielens-20m",
    "movielens-25m",
    "movielens-32m",
    "amazon-games",
]
GAMES = "amazon-games"
_WANTED = (
    "one file of reviews of video games, .txt with `user item` a line in time order "
    "or .csv with user,item,rating,timestamp a line, also .gz"
)


def open_source(
    dataset: Dataset,
    path: str | None,
    on_missing: OnMissing,
    read: Callable[[Path], Interactions],
    invent: Callable[[], Interactions],
) -> Source[Interactions]:
    """Find the events of a dataset; `read` reads a log, `invent` makes synthetic events.

    A MovieLens release that is not in its default folder is downloaded. If that fails, `on_missing` decides between an
    error and invented events under another name. A given `path` must hold the dataset.
    """
    refuse_unknown(on_missing)
    if dataset == "synthetic":
        if path is not None:
            raise UserError("synthetic data takes no data.path: leave it out, or set data.dataset to file")
        return Source(invent(), "synthetic")
    if dataset == "file":
        if path is None:
            raise UserError("data.path is not set: give the interaction log to read")
        log = Path(path)
        if log.is_dir() and (movielens.holds_one(log) or not holds_parts(log)):
            log = movielens.locate_any(log)
        return Source(read(log), _name_of(Path(path)))
    if dataset == GAMES:
        return _games(path, on_missing, read, invent)
    if dataset not in movielens.RELEASES:
        choices = ", ".join(["file", "synthetic", *movielens.RELEASES, GAMES])
        raise UserError(f"data.dataset is '{dataset}': give one of {choices}")
    folder = Path(path) if path is not None else Path("data") / dataset
    found = movielens.locate(dataset, folder)
    # A path that looks like a file, or holds parts of a log, is the log itself. Nothing is downloaded there.
    itself = not movielens.holds_one(folder) and holds_parts(folder) if folder.is_dir() else bool(folder.suffix)
    if found is None and path is not None and (itself or folder.is_file()):
        own = folder.name != movielens.RELEASES[dataset].log
        return Source(read(folder), _name_of(folder) if own else dataset)
    if found is None and path is not None:
        # After a typing error in a path, dprec must neither train on other data nor fill the wrong folder.
        release = movielens.RELEASES[dataset]
        raise UserError(
            f"{dataset} is not in {folder}: data.path needs {release.log} or {release.archive}/{release.log} in it; "
            "without data.path it is downloaded"
        )
    if found is None:
        try:
            found = movielens.download(dataset, folder)
        except movielens.FetchError as reason:
            release = movielens.RELEASES[dataset]
            problem = f"{dataset} is not in {folder} and could not be downloaded ({reason})"
            address = f"{movielens.GROUPLENS}/{release.archive}.zip"
            wanted = (
                f"get {address} and unzip {release.archive}.zip so that {folder / release.archive / release.log} exists"
            )
            return stand_in(dataset, problem, wanted, on_missing, invent, "histories")
    return Source(read(found), dataset)


def _games(
    path: str | None, on_missing: OnMissing, read: Callable[[Path], Interactions], invent: Callable[[], Interactions]
) -> Source[Interactions]:
    folder = Path(path) if path is not None else Path("data") / GAMES
    if path is not None and not folder.is_dir():
        return Source(read(folder), _name_of(folder))
    found = _log_of_games(folder)
    if found is not None:
        return Source(read(found), GAMES)
    if path is not None and holds_parts(folder):
        return Source(read(folder), _name_of(folder))
    problem = f"{GAMES} is not in {folder} and cannot be downloaded"
    wanted = f"put there {_WANTED}"
    return stand_in(GAMES, problem, wanted, "error" if path else on_missing, invent, "histories")


def _name_of(path: Path) -> str:
    named = next((part for part in reversed(path.parts) if not any(mark in part for mark in "*?[")), "")
    return named.split(".")[0] or "file"


def _log_of_games(folder: Path) -> Path | None:
    """The only log in a folder, None if there is none."""
    if not folder.is_dir():
        return None
    found = sorted(file for file in folder.iterdir() if file.name.removesuffix(".gz").endswith((".txt", ".csv")))
    if len(found) > 1:
        raise UserError(f"{folder} has several logs ({', '.join(file.name for file in found)}): set data.path to one")
    return found[0] if found else None
