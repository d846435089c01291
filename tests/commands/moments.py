"""A process that trains with faults at drawn moments, and continues after each: python moments.py RECIPE MOMENTS SEED.

It writes into the working folder, forks for every attempt, so that imports are paid once, and prints what it saw.
It never trains itself, since what a fork inherits of threads does not run there.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from dprec.errors import UserError
from dprec.fit import main as fit
from dprec.run.saved.checkpoints import read_checkpoint

STEPS = 12
REPEATABLE = ["--data.sampling_seed", "1", "--privacy.noise_seed", "2", "--trainer.max_steps", str(STEPS)]
REPEATABLE += ["--model.dropout", "0"]
SIGNALS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM}


def attempt(words: list[str], fault: str | None = None, delay: float = 0.0, room: int = 0) -> tuple[int, str]:
    """The exit code of a process that runs `fit`, or minus its signal, and what it says on standard error."""
    # A pipe, since a file that may not grow would end a run at the warning that a checkpoint could not be written.
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(writer, 2)
            if fault == "starved":
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            code = fit(words)
            if fault is None:
                Path("imported.txt").write_text("\n".join(list(sys.modules)))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if fault in SIGNALS:
        time.sleep(delay)
        os.kill(pid, SIGNALS[fault])
    _, status = os.waitpid(pid, 0)
    os.close(writer)
    with open(reader, encoding="utf-8") as said:
        return os.waitstatus_to_exitcode(status), said.read()


def damage(last: Path, draw: random.Random) -> None:
    """Cut the file off, or change some of its bytes."""
    content = bytearray(last.read_bytes())
    if draw.random() < 0.5:
        del content[draw.randrange(len(content)) :]
    else:
        for _ in range(draw.choice([1, 8, 64])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    last.unlink()  # `previous.ckpt` may be the same file by another name
    last.write_bytes(content)


def ledger(run: Path) -> dict[str, Any]:
    """Steps of each checkpoint, beside those that its own ledger and privacy.json hold."""
    found: dict[str, Any] = (
        {"told": told(json.loads((run / "privacy.json").read_text()))} if (run / "privacy.json").is_file() else {}
    )
    for name in ("last", "previous"):
        path = run / "checkpoints" / f"{name}.ckpt"
        if path.is_file():
            try:
                ours = read_checkpoint(path)["dprec"]
            except UserError:
                continue
            found[name] = {"step": ours["step"], "ledger": told(ours["guarantee"])}
    return found


def told(guarantee: dict[str, Any]) -> int:
    return sum(event["count"] for event in guarantee["events"])


def main(recipe: str, moments: int, seed: int) -> None:
    draw, seen, number = random.Random(seed), [], 0
    code, said = attempt([recipe, *REPEATABLE, "--out", "whole"])
    assert code == 0, said
    for name in Path("imported.txt").read_text().split():
        with suppress(ImportError):
            import_module(name)
    start = time.monotonic()
    code, said = attempt([recipe, *REPEATABLE, "--out", "again"])
    lasts = time.monotonic() - start
    assert code == 0, said
    while moments:
        run, number = Path(f"run{number}"), number + 1
        words = [recipe, *REPEATABLE, "--checkpoint_every", "1", "--out", str(run)]
        while not (run / "metrics.json").exists():
            last, previous = (run / "checkpoints" / f"{name}.ckpt" for name in ("last", "previous"))
            fault = draw.choice([*SIGNALS, "starved", "damaged"]) if moments else None
            moments -= fault is not None
            if fault == "damaged" and last.exists():
                damage(last, draw)
            code, said = attempt(words, fault, draw.uniform(0, lasts), draw.randrange(100_000))
            seen.append({"fault": fault, "code": code, "said": said, **ledger(run)})
            if code == 2 and "previous.ckpt, the one before" in said:
                previous.replace(last)
            elif code == 2 and "cannot be read as a checkpoint" in said:
                last.unlink()
            words = ["--resume", str(run)] if (run / "config.yaml").exists() else words
            if len(seen) > 1000:
                raise RuntimeError(f"no end: {seen[-3:]}")
    weights = [read_checkpoint(path)["state_dict"] for path in sorted(Path().glob("*/checkpoints/last.ckpt"))]
    same = all(one[name].equal(weights[0][name]) for one in weights for name in one)
    print(json.dumps({"seen": seen, "runs": len(weights), "same": same}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
