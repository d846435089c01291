"""One run of `dprec fit` in a process of its own, and the seconds of its stages: ``timed_run FILE BEGAN ARGUMENTS``.

BEGAN is the clock when the process was asked for, so that its start and all imports count.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

STAGES = ("start", "read", "plan", "train", "evaluate", "rest")


class Stages:
    """Seconds of the clock and of the processors; a stage within another is not counted in it.

    >>> stages = Stages(began=time.time())
    >>> stages.enter("train")
    >>> stages.enter("evaluate")
    >>> stages.leave()
    >>> sorted(stages.clock), stages.now
    (['evaluate', 'start', 'train'], 'train')
    """

    def __init__(self, began: float) -> None:
        self.clock: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.now, self._before = "start", list[str]()
        self._at = began, 0.0

    def enter(self, stage: str) -> None:
        self._count()
        self._before.append(self.now)
        self.now = stage

    def leave(self) -> None:
        self._count()
        self.now = self._before.pop()

    def become(self, stage: str) -> None:
        self._count()
        self.now = stage

    def _count(self) -> None:
        at = time.time(), sum(os.times()[:4])  # those of processes that it has forked count once they end
        self.clock[self.now] += at[0] - self._at[0]
        self.cpu[self.now] += at[1] - self._at[1]
        self._at = at

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Count what is spent in this method as this stage."""
        method: Callable[..., Any] = getattr(owner, name)

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            try:
                return method(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, name, timed)


def main(arguments: list[str]) -> int:
    file, began, *rest = arguments
    stages = Stages(float(began))
    from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop

    from dprec.data.module import SampledData
    from dprec.fit import main as fit
    from dprec.privacy.run import PrivateRun
    from dprec.run.experiment import Experiment
    from dprec.run.tasks.task import Task

    stages.watch(Experiment, "__init__", "rest")
    stages.watch(SampledData, "setup", "read")
    stages.watch(PrivateRun, "plan", "plan")
    stages.watch(Experiment, "train", "rest")
    stages.watch(Experiment, "_fit", "train")
    stages.watch(_EvaluationLoop, "run", "evaluate")
    stages.watch(Task, "judge", "evaluate")
    code = fit(rest)
    stages.become("rest")
    stages.become("rest")  # counts what came last
    found = {"clock": [stages.clock[s] for s in STAGES], "cpu": [stages.cpu[s] for s in STAGES]}
    Path(file).write_text(json.dumps(found))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
