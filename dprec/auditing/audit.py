"""Runs an audit: trains every system on the same canaries, and measures what each model reveals about them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from dprec.accounting.ledger import Ledger
from dprec.auditing import evidence, steps
from dprec.auditing.evidence import (
    DOUBT,
    LowerBound,
    audited_delta,
    losses_of,
    lower_bound,
    trained_model,
    untouched_rows,
)
from dprec.auditing.planted import PREFIX, PUSH, Canaries, Marked, Planted, marked
from dprec.auditing.systems import System, canaried, recorded
from dprec.cli.arguments import CommandLine
from dprec.cli.parser import Settings
from dprec.errors import UserError
from dprec.models import Learner, Recommender
from dprec.run.experiment import Experiment, resume, start
from dprec.run.saved.checkpoints import read_checkpoint
from dprec.run.saved.folder import RunFolder, write_json
from dprec.run.saved.resume import foreign_names

TRAINING = 0.7  # of the remaining time is for training, the rest for measuring


class Audited(Experiment):
    """An experiment whose model has canaries of the gradient among its users."""

    model: Marked

    def __init__(self, settings: Settings, checkpoint: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings, checkpoint)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}
        # A strategy that keeps DP-SGD's promise also keeps it with one more table of dense noise, which we can read.
        ruled = self.privacy is not None and self.privacy.strategies.broken is not None
        self.model.watch(self.planted.directions, self.steps, ruled)

    def how_to_continue(self, run: RunFolder) -> str:
        return "continue with the same command"  # only that command knows the canaries

    def kind_of_model(self, cls: type[Learner]) -> type[Learner]:
        assert issubclass(cls, Recommender)  # `canaried` refuses all others
        return marked(cls)

    @property
    def planted(self) -> Planted:
        return self.data.planted


@dataclass(frozen=True)
class Audit:
    """An audit's folder, canaries and time limit."""

    folder: Path
    canaries: Canaries
    minutes: float

    def run(self, line: CommandLine, systems: Sequence[System], console: Console) -> dict[str, Any]:
        """Train and measure every system, and return what audit.json holds; skip systems that are done."""
        self._claim(line, systems)
        deadline = time.monotonic() + 60 * self.minutes
        rows = []
        for place, system in enumerate(systems):
            console.print(f"{system.name} ({place + 1} of {len(systems)})", style="bold")
            seconds = TRAINING * (deadline - time.monotonic()) / (len(systems) - place)
            rows.append(self._system(line, system, seconds, console))
        report = {**self._asked(line, systems), "systems": rows}
        write_json(self.folder / "audit.json", report)
        return report

    def _asked(self, line: CommandLine, systems: Sequence[System]) -> dict[str, Any]:
        return {
            "recipes": line.recipes,
            "overrides": dict(line.overrides),
            "canaries": self.canaries.settings(),
            "asked": recorded(systems),
        }

    def _claim(self, line: CommandLine, systems: Sequence[System]) -> None:
        """Claim the folder for this audit: continue an audit with the same settings, refuse any other."""
        asked, file = self._asked(line, systems), self.folder / "asked.json"
        if file.is_file():
            if json.loads(file.read_text(encoding="utf-8")) != asked:
                raise UserError(f"--out {self.folder} holds an audit with other settings: give another folder")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise UserError(f"--out {self.folder} is not empty and holds no audit: give another folder")
        else:
            write_json(file, asked)

    def _system(self, line: CommandLine, system: System, seconds: float, console: Console) -> dict[str, Any]:
        folder = self.folder / system.folder
        done, run = folder / "measured.json", RunFolder(folder / "run")
        if done.is_file():
            console.print("measured before")
            return json.loads(done.read_text(encoding="utf-8"))
        settings = canaried(line, system, self.canaries, folder, seconds)
        if run.metrics.is_file():
            experiment = Audited(settings)
        elif run.config.is_file():
            limit = ("trainer.max_time", settings.tree["trainer"]["max_time"])
            experiment = resume(CommandLine(overrides=[limit]), run, console, Audited, [*foreign_names(settings.tree)])
        else:
            experiment = start(settings, console, Audited)
        with console.status("measuring"):
            write_json(done, {"system": system.name, **measure(experiment, run)})
        return json.loads(done.read_text(encoding="utf-8"))


def measure(experiment: Audited, run: RunFolder) -> dict[str, Any]:
    """Measure what the trained model, and its training steps, reveal about the canaries."""
    report = json.loads(run.metrics.read_text(encoding="utf-8"))
    checkpoint = read_checkpoint(run.checkpoint)
    planted, privacy, batches = experiment.planted, experiment.privacy, experiment.batches
    delta = report["delta"] or 1 / batches.users
    there = audited_delta(delta, experiment.data.canaries.coins)
    ledger = spent(experiment, checkpoint)
    sigma = 0.0 if privacy is None else report["noise_multiplier"] * privacy.strategies.gradient_noise_factor
    norm = PUSH if privacy is None else privacy.clipping.max_norm
    seen = checkpoint["state_dict"][f"{PREFIX}seen"].double().numpy()[: report["steps"]]  # (T, m)
    seen = seen * batches.expected_batch / norm
    model = trained_model(checkpoint)
    bounds = _bounds(planted, -losses_of(model, planted.sequences), steps.scores(seen, sigma, batches.rate), there)
    found = {} if privacy is None else steps.gauges(seen, planted.direction_coins, sigma, batches.rate)
    row = {
        "promised_epsilon": report["epsilon"],  # null: none
        "delta": delta,
        "audited_delta": there,  # where ε is bounded, and promised:
        "promised_there": None if ledger is None else ledger.epsilon(there),
        "noise_multiplier": report["noise_multiplier"],
        "sampling_rate": batches.rate,
        "users": batches.users,
        "canaries": planted.training().users,
        "steps": report["steps"],
        "planned_steps": experiment.steps,
        "seconds": report["seconds"],
        **{name: report[name] for name in experiment.metrics},
        "empirical_epsilon": {name: asdict(bound) for name, bound in bounds.items()},
        "gauges": steps.as_dict(found),
        **_exposures(model, planted),
        "untouched_rows": _untouched(experiment, checkpoint),
        "revealed": report.get("revealed_not_private"),  # in place of an ε, of all users with the canaries
    }
    return row | {"breaches": [] if ledger is None else breaches(row, bounds, found)}


def _bounds(
    planted: Planted, closeness: np.ndarray, scores: Mapping[str, np.ndarray], delta: float
) -> dict[str, LowerBound]:
    """Return the ε that guesses about each kind of canary refute, with half of `DOUBT` for each; none without coins."""
    if not len(planted.sequences):
        return {}
    return {
        "sequences": lower_bound({"loss": closeness}, planted.sequence_coins, delta, DOUBT / 2),
        "gradients": lower_bound(scores, planted.direction_coins, delta, DOUBT / 2),
    }


def spent(experiment: Audited, checkpoint: dict[str, Any]) -> Ledger | None:
    """Return the run's ledger; None if it promises nothing."""
    privacy = experiment.privacy
    if privacy is None or privacy.repeatable or privacy.strategies.broken is not None:
        return None
    privacy.ledger.load_state_dict(checkpoint["callbacks"][privacy.state_key]["ledger"])
    return privacy.ledger


def breaches(row: dict[str, Any], bounds: dict[str, LowerBound], found: dict[str, steps.Gauge]) -> list[str]:
    """Return one line for each measurement that contradicts the promise."""
    promised = row["promised_there"]
    said = [
        f"ε is at least {bound.epsilon:.2f} by {name}, promised is {promised:.2f} at δ = {bound.delta:.1g}"
        for name, bound in bounds.items()
        if bound.epsilon > promised
    ]
    for name, gauge in found.items():
        if gauge.breach:
            said.append(f"{name} is {gauge.measured:.3g} ± {gauge.error:.2g} and should be {gauge.promised:.3g}")
    return said


def _exposures(model: Recommender, planted: Planted) -> dict[str, Any]:
    """Return median and quartiles in bits for each number of occurrences, by rank and by fit, and the fit's error."""
    references = losses_of(model, planted.references)
    secrets = losses_of(model, planted.secrets)
    ranked = evidence.by_rank(secrets, references)
    fitted, own = np.split(evidence.by_fit(np.concatenate([secrets, references]), references), [len(secrets)])
    points = [
        {
            "occurrences": count,
            "by_rank": _quartiles(ranked[planted.occurrences == count]),
            "by_fit": _quartiles(fitted[planted.occurrences == count]),
        }
        for count in dict.fromkeys(planted.occurrences.tolist())
    ]
    return {"exposures": points, "misfit": evidence.misfit(own)}


def _quartiles(bits: np.ndarray) -> dict[str, float]:
    low, middle, high = np.quantile(bits, [0.25, 0.5, 0.75])
    return {"mean": float(bits.mean()), "lower": float(low), "median": float(middle), "upper": float(high)}


def _untouched(experiment: Audited, checkpoint: dict[str, Any]) -> dict[str, int]:
    start: dict[str, torch.Tensor] = experiment.start
    rows = untouched_rows(start, checkpoint["state_dict"], experiment.data.items)
    return {name: len(kept) for name, kept in rows.items()}
