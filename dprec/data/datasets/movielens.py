"""Where to find the MovieLens files, and how to fetch them from GroupLens."""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
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
    """Fetch, check and unpack a release into `folder`; the log appears there only when it is complete.

    Raises FetchError after a few seconds without a network, and UserError if the archive does not match the
    checksum that GroupLens publishes with it.
    """
    release = RELEASES[dataset]
    address = f"{GROUPLENS}/{release.archive}.zip"
    published = _answer(f"{address}.md5").decode("ascii", errors="replace")
    checksum = re.search(r"\b[0-9a-f]{32}\b", published)
    if checksum is None:
        raise FetchError(f"{address}.md5 is not a checksum")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            archive = Path(scratch) / "archive.zip"
            if _fetch(address, archive, dataset) != checksum[0]:
                raise UserError(f"{address} does not match its published checksum: try again")
            with zipfile.ZipFile(archive) as files:
                files.extractall(scratch)
            unpacked, home = Path(scratch) / release.archive, folder / release.archive
            home.mkdir(exist_ok=True)
            # The log comes last: if a run finds the log, all other files are there.
            for file in sorted(unpacked.iterdir(), key=lambda file: file.name == release.log):
                if file.is_file():
                    file.replace(home / file.name)
    except zipfile.BadZipFile as error:
        raise UserError(f"{address} is not a zip archive: try again") from error
    except (OSError, HTTPException) as error:
        raise FetchError(f"{type(error).__name__}: {error}") from error
    found = locate(dataset, folder)
    if found is None:
        raise UserError(f"{address} has no {release.log}: report this, the archive has changed")
    return found


def _answer(address: str) -> bytes:
    """A small file. Waits at most PATIENCE: without a network, a name look-up ignores the socket timeout."""
    result: list[bytes | Exception] = []

    def ask() -> None:
        try:
            with urlopen(address, timeout=PATIENCE) as response:
                result.append(response.read(4096))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    if not result:
        raise FetchError(f"no answer from {address} in {PATIENCE:.0f} seconds")
    if isinstance(result[0], HTTPError):
        raise FetchError(f"{address} answered {result[0].code}")
    if isinstance(result[0], Exception):
        raise FetchError(f"no connection to {address}")
    return result[0]


def _fetch(address: str, target: Path, what: str) -> str:
    """Write a file and return its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with (
        urlopen(address, timeout=PATIENCE) as response,
        target.open("wb") as file,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        size = response.headers.get("Content-Length")
        task = progress.add_task(f"downloading {what}", total=int(size) if size else None)
        while piece := response.read(2**18):
            digest.update(piece)
            file.write(piece)
            progress.advance(task, len(piece))
    return digest.hexdigest()
