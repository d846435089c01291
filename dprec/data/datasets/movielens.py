"""Where to find the MovieLens files, and how to fetch them from GroupLens."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dprec.errors import UserError

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
PATIENCE = 5.0  # seconds without an answer that mean "no network"


class Release(NamedTuple):
    archive: str  # the archive's name without .zip, and the folder in it
    log: str  # the file in it that holds the ratings


RELEASES = {
    "movielens-100k": Release("ml-100k", "u.data"),
    "movielens-1m": Release("ml-1m", "ratings.dat"),
    "movielens-20m": Release("ml-20m", "ratings.csv"),
    "movielens-25m": Release("ml-25m", "ratings.csv"),
    "movielens-32m": Release("ml-32m", "ratings.csv"),
}


class FetchError(Exception):
    """The files could not be fetched; the message says why, in a few words."""


def locate(dataset: str, folder: Path) -> Path | None:
    """The log of a release in `folder`, or in the sub-folder that its archive makes."""
    release = RELEASES[dataset]
    places = (folder / release.log, folder / release.archive / release.log)
    return next((place for place in places if place.is_file()), None)


def holds_one(folder: Path) -> bool:
    """Whether a folder or its sub-folders have a log with a MovieLens name."""
    return bool(_logs(folder)[1])


def _logs(folder: Path) -> tuple[list[str], list[Path]]:
    names = sorted({release.log for release in RELEASES.values()})
    return names, [path for name in names for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file()]


def locate_any(folder: Path) -> Path:
    """The only log with a MovieLens name in a folder or its sub-folders."""
    names, found = _logs(folder)
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{folder} has several logs ({', '.join(map(str, found))}): set data.path to one")
    raise UserError(f"the folder {folder} has none of {', '.join(names)}: set data.path to the log itself")


def download(dataset: str, folder: Path) -> Path:
    """Fetch and unpack a release into `folder`; the log appears there only when it is complete.

    Raises FetchError without a network, and UserError if the archive is damaged, which its own checksums show.
    """
    release = RELEASES[dataset]
    address = f"{GROUPLENS}/{release.archive}.zip"
    try:
        with tempfile.TemporaryFile() as archive:
            _fetch(address, archive, dataset)
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
        raise UserError(f"{address} is no whole zip archive ({error}): try again") from error
    except (OSError, HTTPException) as error:
        raise FetchError(f"{address}: {getattr(error, 'reason', None) or error}") from error
    found = locate(dataset, folder)
    if found is None:
        raise UserError(f"{address} has no {release.log}: report this, the archive has changed")
    return found


def _fetch(address: str, target: IO[bytes], what: str) -> None:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with (
        urlopen(address, timeout=PATIENCE) as response,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        size = int(response.headers.get("Content-Length") or 0) or None
        with progress.wrap_file(response, size, description=f"downloading {what}") as shown:
            shutil.copyfileobj(shown, target)
