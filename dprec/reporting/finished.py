"""What a run folder tells of a finished run."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from dprec.accounting.chain import Spent, together
from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError
from dprec.run.saved.folder import RunFolder

Curve = list[tuple[float, float]]
POINTS = 10  # of the curve of ε
BASELINES = {"popularity_": "popularity", "base_rate_": "base rate"}


@dataclass(frozen=True)
class Finished:
    """The content of metrics.json, privacy.json, config.yaml, the CSV logs and the resampled means."""

    folder: Path
    metrics: Mapping[str, Any]
    privacy: Mapping[str, Any]
    config: str
    curves: Mapping[str, Curve]
    day: str = "an unknown day"  # on which its figures were written
    resampled: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Finished:
        run = RunFolder(Path(path))
        if not run.path.is_dir():
            raise UserError(f"no run at '{path}': give the folder that --out named")
        if not run.metrics.is_file():
            instead = run.chosen_instead or f"so it is not finished: dprec fit --resume {run.quoted}"
            raise UserError(f"{path} holds no metrics.json, {instead}")
        try:
            config = run.config.read_text(encoding="utf-8") if run.config.is_file() else ""
            day = datetime.fromtimestamp(run.metrics.stat().st_mtime).date().isoformat()
            drawn = _json(run.resampled) if run.resampled.is_file() else {}
            return cls(run.path, _json(run.metrics), _json(run.privacy), config, _curves(run.path), day, drawn)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the run in {path}: {error}") from None

    @property
    def name(self) -> str:
        return f"{self.metrics.get('run', self.folder.name)} ({self.folder})"

    @property
    def guarantee(self) -> str:
        return str(self.metrics["guarantee"])

    @property
    def private(self) -> bool:
        """Whether there is a promise with a finite ε."""
        epsilon = self.metrics.get("epsilon")
        return not self.guarantee.startswith("not private") and epsilon is not None and math.isfinite(epsilon)

    @property
    def not_covered(self) -> str:
        return self.guarantee.partition("; not covered: ")[2]

    @cached_property
    def quality(self) -> list[tuple[str, float, float, str]]:
        """Each metric with its baseline's value and the baseline's name."""
        return [
            (name, float(ours), float(theirs), baseline)
            for prefix, baseline in BASELINES.items()
            for name, ours in self.metrics.items()
            if isinstance(ours, (int, float)) and isinstance(theirs := self.metrics.get(prefix + name), (int, float))
        ]

    @cached_property
    def events(self) -> list[tuple[Event, int]]:
        if "events" not in self.privacy:
            return []
        ledger = Ledger()
        ledger.load_state_dict(self.privacy)
        return list(ledger.events.items())

    def spent(self) -> Curve:
        """ε after parts of training, releases before it included; but for the last, upper bounds on a coarse grid."""
        if not self.private:
            return []
        earlier = together([*map(Spent.from_state, self.privacy.get("earlier", ()))])
        before = earlier.after_all({event: count for event, count in self.events if event.what != "training"})
        steps = {event: count for event, count in self.events if event.what == "training"}
        total, delta = sum(steps.values()), float(self.metrics["delta"])
        whole = float(self.metrics["epsilon"])
        curve: Curve = []
        for part in (0.0, 1 / max(total, POINTS), *(place / POINTS for place in range(1, POINTS))):
            done = {event: round(count * part) for event, count in steps.items()}
            epsilon = before.after_all(done).epsilon(delta, resolution=COARSE_GRID)
            curve.append((sum(done.values()), min(epsilon, whole)))
        return [*dict(curve).items(), (total, whole)] if total else []


def _json(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return values


def _curves(run: Path) -> dict[str, Curve]:
    """Every column of the CSV logs over the steps; where a resumed run logged a step twice, the later log counts."""
    found: dict[str, dict[float, float]] = {}
    logs = run.glob("*/version_*/metrics.csv")
    for log in sorted(logs, key=lambda path: int(path.parent.name.rpartition("_")[2])):
        with open(log, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for name, value in row.items():
                    if value and row.get("step") and name not in ("step", "epoch"):
                        found.setdefault(name, {})[float(row["step"]) + 1] = float(value)
    return {
        name: [point for point in sorted(points.items()) if math.isfinite(point[1])] for name, points in found.items()
    }
