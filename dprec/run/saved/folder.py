"""A run's folder: its files, how a run claims it, and atomic writing of files."""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dprec.cli.command import finite
from dprec.errors import UserError

FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG")}  # disk full, quota, file too large


@dataclass(frozen=True)
class RunFolder:
    """config.yaml (re-runnable), metrics.json, privacy.json, checkpoints/ and logs/ of one run."""

    path: Path

    @property
    def quoted(self) -> str:
        """The path, quoted for a shell."""
        return shlex.quote(str(self.path))

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def privacy(self) -> Path:
        return self.path / "privacy.json"

    @property
    def promise(self) -> dict[str, Any]:
        """The content of privacy.json; if an older version did not record the start, the file's time is used."""
        written = datetime.fromtimestamp(self.privacy.stat().st_mtime, timezone.utc).isoformat()
        return {"began": written, **json.loads(self.privacy.read_text(encoding="utf-8"))}

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def data(self) -> Path:
        """Counts of what was read and dropped, and a hash of all records: private data."""
        return self.path / "logs" / "data.json"

    @property
    def resampled(self) -> Path:
        """The means of resampled held-out users, with which runs are compared: private data."""
        return self.path / "logs" / "resampled.json"

    @property
    def facts(self) -> dict[str, Any]:
        """The content of `data`; empty if it is missing."""
        try:
            return dict(json.loads(self.data.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    @property
    def content(self) -> str | None:
        """The hash of the records that the run began with, if it is recorded."""
        return self.facts.get("content")

    @property
    def next(self) -> Path:
        """The note that names the run which continues this one, relative to this folder."""
        return self.path / "next"

    @property
    def goes_on_in(self) -> Path | None:
        """The folder of that run, or None; a run that stopped before its first checkpoint released nothing."""
        if not self.next.is_file():
            return None
        path = Path(os.path.normpath(self.path / self.next.read_text(encoding="utf-8").strip()))
        return None if RunFolder(path).config.is_file() and not RunFolder(path).checkpoint.is_file() else path

    @property
    def report(self) -> Path:
        """The page that `dprec report` writes: private data."""
        return self.path / "report.html"

    @property
    def chosen_instead(self) -> str | None:
        """A hint for a folder that is no run, but in which `dprec tune` has kept one."""
        best = self.path / "best"
        return f"since it holds the runs of dprec tune: give {best}" if best.is_dir() else None

    @property
    def holds_a_run(self) -> bool:
        return any(path.exists() for path in (self.config, self.metrics, self.privacy, self.checkpoint))

    @classmethod
    def numbered(cls, name: str, root: Path = Path("runs")) -> RunFolder:
        """The next free number under ``runs/<name>``."""
        taken = [int(path.name) for path in (root / name).glob("*") if path.name.isdigit()]
        return cls(root / name / str(max(taken, default=0) + 1))

    def refuse_if_taken(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file: give a folder that does not exist yet")
        if self.holds_a_run:
            raise UserError(
                f"{self.path} already holds a run: give another --out, or continue it with --resume {self.quoted}"
            )

    def claim(self, settings: str) -> None:
        """Claim the folder for this run by creating config.yaml; if two runs try, one is refused."""
        self.refuse_if_taken()
        text = f"# Run again, from this folder: python -m dprec.fit {self.config.name} --out NEW_FOLDER\n"
        try:
            self._make()
            with open(self.config, "x", encoding="utf-8") as file:
                file.write(text + settings)
        except FileExistsError:
            raise UserError(f"{self.path} already holds a run: give another --out") from None
        except OSError as error:
            raise UserError(f"cannot write the run folder {self.path}: {error.strerror}") from None

    def _make(self) -> None:
        """Make the folder, unreadable for others, as some files are not private; keep an old folder's permissions."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            return
        if os.name == "posix" and stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            print(
                f"warning: others can read {self.path}, and some of its files are not private: run chmod 700",
                file=sys.stderr,
            )

    def clear_parts(self) -> None:
        """Remove partial files of a killed process; only while no other process trains here."""
        for folder in (self.path, self.path / "logs", self.checkpoint.parent):
            for part in folder.glob(".*.part"):
                part.unlink(missing_ok=True)

    def refuse_if_finished(self) -> None:
        if self.metrics.exists():
            raise UserError(f"the run in {self.path} is finished: give another --out to train again")

    def refuse_if_continued(self) -> None:
        if (path := self.goes_on_in) is not None:
            raise UserError(
                f"{path} goes on from {self.path} already: continue that run, or one ledger would not hold both"
            )

    def note_next(self, run: RunFolder) -> None:
        note = os.path.relpath(run.path, self.path) + "\n"
        replace_file(self.next, lambda temporary: temporary.write_text(note, encoding="utf-8"))

    def release(self) -> None:
        """Release the folder if nothing was trained, so that a mistake at the first step costs nothing."""
        if self.checkpoint.exists():
            return
        for path in (self.config, self.privacy, self.data):
            path.unlink(missing_ok=True)
        logs = self.path / "logs"
        emptied = [*sorted(logs.rglob("*"), reverse=True), logs, self.checkpoint.parent, self.path]
        for folder in emptied:  # innermost first
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def full_disk_is_one_line(run: RunFolder) -> Iterator[None]:
    """Turn a full disk's error into one line: which file was not written, and how to continue."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        then = f"continue with python -m dprec.fit --resume {run.quoted}" if run.checkpoint.exists() else "start again"
        where = error.filename or f"into {run.path}"
        raise UserError(f"cannot write {where} ({error.strerror}): make room, and {then}") from None


def write_json(path: Path, values: Any) -> None:
    """Write strict JSON, completely or not at all; a number that is not finite becomes null."""
    text = json.dumps(finite(values), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))


def write_private_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write strict JSON as `write_json` does, readable by the owner alone."""
    write_private(path, json.dumps(finite(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write text completely or not at all, readable by the owner alone."""

    def write(temporary: Path) -> None:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)

    replace_file(path, write)


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Call ``write(temporary path)``, then rename once: after a kill, either the old or the new file exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def checkpoint_of(run: str) -> Path:
    """Return the checkpoint of RUN: the last one of a run folder, or a .ckpt file."""
    path = Path(run)
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(f"no run at {run!r}: give the folder that --out named")
    checkpoint = RunFolder(path).checkpoint
    if not checkpoint.is_file():
        missing, instead = checkpoint.relative_to(path), RunFolder(path).chosen_instead
        instead = instead or "so it is not a run or stopped before its first checkpoint: give another run"
        raise UserError(f"{run} holds no {missing}, {instead}")
    return checkpoint


# Only one process trains in a run folder: two would each spend the budget and report only their own part.


try:
    import fcntl
except ImportError:  # a platform without POSIX locks
    fcntl = None  # type: ignore[assignment]


@contextmanager
def training_alone(config: Path) -> Iterator[None]:
    """Lock a run's config.yaml, which every run has and no run rewrites; refuse if another process has the lock.

    The system releases the lock when the process ends, so a killed run leaves nothing to clean up.
    """
    if fcntl is None:
        yield
        return
    try:
        file = os.open(config, os.O_RDWR)
    except OSError as error:
        raise UserError(f"cannot lock {config}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{config.parent} is being trained by another process: wait for it or stop it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(file)
