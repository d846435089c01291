"""From the name of a dataset to its events: a file, the MovieLens releases, Amazon games, or invented histories."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.request import urlopen

from dprec.data.logs.histories import Interactions
from dprec.data.logs.parts import OnMissing, Source, holds_parts, local, refuse_unknown, stand_in
from dprec.errors import UserError
from dprec.notices import say

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

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
PATIENCE = 5.0  # seconds without an answer that mean "no network"


class Release(NamedTuple):
    archive: str  # the archive's name without .zip, and the folder in it
    log: str  # the file in it that holds the ratings

    @property
    def address(self) -> str:
        return f"{GROUPLENS}/{self.archive}.zip"


RELEASES = {
    "movielens-100k": Release("ml-100k", "u.data"),
    "movielens-1m": Release("ml-1m", "ratings.dat"),
    "movielens-20m": Release("ml-20m", "ratings.csv"),
    "movielens-25m": Release("ml-25m", "ratings.csv"),
    "movielens-32m": Release("ml-32m", "ratings.csv"),
}
LOGS = sorted({release.log for release in RELEASES.values()})


class FetchError(Exception):
    """The files could not be fetched; the message gives the reason."""


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
        return Source(read(_log_at(local(path))), _name_of(Path(path)))
    if dataset not in (GAMES, *RELEASES):
        choices = ", ".join(["file", "synthetic", *RELEASES, GAMES])
        raise UserError(f"data.dataset is '{dataset}': give one of {choices}")
    folder = Path("data") / dataset if path is None else local(path)
    found = _located(dataset, folder)
    if found is not None:
        return Source(read(found), dataset)
    # A path that looks like a file, or holds parts of a log, is the log itself. Nothing is downloaded there.
    itself = holds_parts(folder) and not _logs(folder) if folder.is_dir() else folder.suffix or holds_parts(folder)
    if path is not None and itself:
        named = dataset in RELEASES and folder.name == RELEASES[dataset].log
        return Source(read(folder), dataset if named else _name_of(folder))
    if dataset == GAMES:
        problem = f"{GAMES} is not in {folder} and cannot be downloaded"
        return stand_in(GAMES, problem, f"put there {_WANTED}", "error" if path else on_missing, invent, "histories")
    release = RELEASES[dataset]
    if path is not None:
        # After a typing error in a path, dprec must neither train on other data nor fill the wrong folder.
        raise UserError(
            f"{dataset} is not in {folder}: data.path needs {release.log} or {release.archive}/{release.log} in it; "
            "without data.path it is downloaded"
        )
    try:
        return Source(read(_downloaded(dataset, folder)), dataset)
    except FetchError as reason:
        problem = f"{dataset} is not in {folder} and could not be downloaded ({reason})"
        file = folder / release.archive / release.log
        wanted = f"get {release.address} and unzip {release.archive}.zip so that {file} exists"
        return stand_in(dataset, problem, wanted, on_missing, invent, "histories")


def _name_of(path: Path) -> str:
    named = next((part for part in reversed(path.parts) if not any(mark in part for mark in "*?[")), "")
    return named.split(".")[0] or "file"


def _logs(folder: Path) -> list[Path]:
    """Every log with a MovieLens name in a folder or its sub-folders."""
    return [path for name in LOGS for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file()]


def _log_at(path: Path) -> Path:
    """Return the log itself; for a folder without parts, or with files of MovieLens, the only log in it by name."""
    found = _logs(path) if path.is_dir() else []
    if not found and (not path.is_dir() or holds_parts(path)):
        return path
    if not found:
        raise UserError(f"the folder {path} has none of {', '.join(LOGS)}: set data.path to the log itself")
    return _only(found, path)


def _only(found: list[Path], folder: Path) -> Path:
    if len(found) > 1:
        raise UserError(f"{folder} has several logs ({', '.join(map(str, found))}): set data.path to one")
    return found[0]


def _located(dataset: str, folder: Path) -> Path | None:
    """Return a dataset's log in its folder; a release's may also be in its archive's sub-folder."""
    if dataset in RELEASES:
        release = RELEASES[dataset]
        places = (folder / release.log, folder / release.archive / release.log)
        return next((place for place in places if place.is_file()), None)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [file for file in files if file.name.removesuffix(".gz").endswith((".txt", ".csv"))]
    return _only(found, folder) if found else None


def _downloaded(dataset: str, folder: Path) -> Path:
    """Fetch and unpack a release into `folder`; the log appears there only when it is complete.

    Raises FetchError without a network, and UserError if the archive is damaged, which its own checksums show.
    """
    release = RELEASES[dataset]
    try:
        with tempfile.TemporaryFile() as archive:
            with urlopen(release.address, timeout=PATIENCE) as response:
                say(f"downloading {release.address} into {folder}")
                shutil.copyfileobj(response, archive)
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
                with zipfile.ZipFile(archive) as files:
                    files.extractall(scratch)
                unpacked, home = Path(scratch) / release.archive, folder / release.archive
                home.mkdir(exist_ok=True)
                # The log comes last: if a run finds the log, all other files are there.
                for file in sorted(unpacked.iterdir(), key=lambda file: file.name == release.log):
                    if file.is_file():
                        file.replace(home / file.name)
    except zipfile.BadZipFile as error:
        raise UserError(f"{release.address} is no whole zip archive ({error}): try again") from error
    except (OSError, HTTPException) as error:
        raise FetchError(f"{release.address}: {getattr(error, 'reason', None) or error}") from error
    found = _located(dataset, folder)
    if found is None:
        raise UserError(f"{release.address} has no {release.log}: report this, the archive has changed")
    return found
