"""Chooses settings privately: trains some of them, scores each with noise, and keeps only the best run."""

from __future__ import annotations

import copy
import itertools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import round_up
from dprec.accounting.plan import Plan
from dprec.accounting.repeated import Price, Repeated
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Stopped
from dprec.cli.parser import Settings, parse
from dprec.cli.recipe import normal
from dprec.data.selection.packing import RankingUsers
from dprec.data.sequences import PRIVATE
from dprec.errors import UserError
from dprec.metrics.ranking import GAINS, both_ranks
from dprec.models import Learner
from dprec.models.learning.kept import path_of
from dprec.noise.gaussian import ROUNDING, GaussianNoise
from dprec.notices import heard_by
from dprec.run.experiment import Experiment, resume, start
from dprec.run.saved.folder import RunFolder, training_alone, write_private_json
from dprec.run.tasks.judged import gains_of
from dprec.run.tasks.ranking import Ranking

Candidate = tuple[tuple[str, str], ...]  # settings, as on a command line

QUIET = Console(quiet=True)  # for the runs, which print exact figures, also of the test
SAME_LOG = frozenset({"batch_size", "max_length", "one_target", "tokens"})  # settings of `data` with the same users


def candidates_of(tried: Sequence[str]) -> list[Candidate]:
    """Return every combination of the values of `--try KEY=VALUE,VALUE`.

    >>> candidates_of(["model.learning_rate=0.01,0.02", "data.batch_size=512"])[1]
    (('model.learning_rate', '0.02'), ('data.batch_size', '512'))
    """
    axes = []
    for text in tried:
        key, equals, values = text.partition("=")
        try:
            given = yaml.safe_load(values) if values.startswith("[") else values.split(",")
        except yaml.YAMLError:
            raise UserError(f"--try {text}: it is not valid YAML: look for a bracket that is left open") from None
        texts = [value if isinstance(value, str) else json.dumps(value) for value in given]
        if not equals or not key or not all(texts) or not texts:
            raise UserError(f"--try {text}: write KEY=VALUE,VALUE, such as model.learning_rate=0.01,0.02")
        if normal(key) in ("privacy.epsilon", "privacy.delta", "privacy", "metrics", "baselines", "seed", "out"):
            raise UserError(f"--try {key}: it is the same for all settings; give it as --{key}")
        axes.append([(key, value.strip()) for value in texts])
    if not axes:
        raise UserError("nothing to choose: give --try KEY=VALUE,VALUE, such as --try model.learning_rate=0.01,0.02")
    return list(itertools.product(*axes))


def said(candidate: Candidate) -> str:
    return " ".join(f"--{key} {value}" for key, value in candidate)


@dataclass(frozen=True)
class Tuning:
    """A recipe, the settings to choose from, and the price."""

    line: CommandLine
    candidates: list[Candidate]
    repeated: Repeated
    price: Price
    metric: str
    users: int
    unit: str
    folder: Path
    assumptions: list[str]  # of all settings, since the choice depends on each of them
    coarse: bool  # whether any of them trains in bfloat16

    @classmethod
    def of(cls, line: CommandLine, candidates: list[Candidate], repeated: Repeated, out: str | None) -> Tuning:
        """Read the data, check all settings, and compute the price."""
        settings = [parse(_with(line, candidate)) for candidate in candidates]
        if any(each.tree["data"]["init_args"].get("catalogue") == PRIVATE for each in settings):
            raise UserError(
                "data.catalogue is private, and each run would choose another: give a file, or leave it out"
            )
        for each in settings:
            each.refuse_chain("tune")
            _refuse_other_log(each.tree["data"], settings[0].tree["data"])
        experiments = [Experiment(each) for each in settings]
        first, plans = experiments[0], list[tuple[Plan, int]]()
        for candidate, experiment in zip(candidates, experiments, strict=True):
            _refuse_unfit(experiment, said(candidate))
            assert experiment.privacy is not None
            entry = (experiment.privacy.planned, experiment.steps)
            if entry not in plans:
                plans.append(entry)
        privacy = first.privacy
        assert privacy is not None
        assert privacy.epsilon is not None
        price = Price.of(PrivacyBudget(privacy.epsilon, privacy.delta), repeated, plans)
        folder = Path(out) if out else Path("runs") / f"{first.name}-tuned"
        return cls(
            line,
            candidates,
            repeated,
            price,
            first.metrics[0],
            first.data.users,
            first.data.unit,
            folder,
            list(dict.fromkeys(assumed for each in experiments for assumed in each.assumptions)),
            any("bf16" in str(each.settings.tree["trainer"]["precision"]) for each in experiments),
        )

    @property
    def promise(self) -> str:
        """The sentence before that of the chosen run."""
        return (
            f"({round_up(self.price.epsilon)}, {round_up(self.price.budget.delta)})-differential privacy per "
            f"{self.unit} for the choice of this run among a random number of runs, {self.repeated.mean:g} on average, "
            "by a score with noise, and for the models in its checkpoints, if nothing of the other runs is shown, nor "
            "how many there were; one run, chosen without looking at data, has"
        )

    def show(self, console: Console) -> None:
        """Print what will be tried, and its cost."""
        price = self.price
        for text in (
            f"{len(self.candidates)} settings; {self.repeated.mean:g} runs on average, each with one of them, drawn",
            f"ε = {round_up(price.epsilon)} at δ = {round_up(price.budget.delta)} pays for the choice and for the run "
            f"that is kept, which has {price.epsilon_of_run:.3g} for itself",
            f"score: {self.metric.upper()} on validation data, with noise of standard deviation "
            f"{price.score_noise / self.users:.2g}",
        ):
            console.print(text, soft_wrap=True)

    def run(self, console: Console) -> Path:
        """Train, or continue, and return the folder of the chosen run."""
        result, best = self.folder / "tune.json", self.folder / "best"
        if result.exists():
            raise UserError(f"{self.folder} holds a finished choice: give another --out")
        plan_file, scores_file = self.folder / "plan.json", self.folder / "scores.json"
        asked = {"words": [*self.line.recipes, *self.line.words], "try": self.candidates, "price": asdict(self.price)}
        asked = json.loads(json.dumps(asked))
        if not plan_file.exists():
            self._claim()
            write_private_json(plan_file, {"asked": asked, "picks": self._picks()})
        with training_alone(plan_file):
            plan = json.loads(plan_file.read_text(encoding="utf-8"))
            if plan["asked"] != asked:
                raise UserError(f"{self.folder} holds a choice among other settings: give another --out")
            picks = [self.candidates[place] for place in plan["picks"]]
            done = json.loads(scores_file.read_text(encoding="utf-8")) if scores_file.exists() else {"scores": []}
            scores = done["scores"]
            if done.get("settling"):
                self._settle(scores)
            for number in range(len(scores), len(picks)):
                console.print(f"run {number + 1}: {said(picks[number])}", soft_wrap=True)
                scores.append(self._score_of(picks[number]))
                write_private_json(scores_file, {"scores": scores, "settling": True})  # a score is not drawn again
                self._settle(scores)
                write_private_json(scores_file, {"scores": scores, "settling": False})
            kept = int(np.argmax(scores))
            write_private_json(result, self._told(picks[kept], scores[kept], best))
            scores_file.unlink()
            plan_file.unlink()
        console.print(f"kept: {said(picks[kept])}; the others are deleted", soft_wrap=True)
        console.print(f"run folder: {best}", soft_wrap=True)
        return best

    def compare(self, best: Path, console: Console) -> None:
        """Train the unchanged recipe with the whole budget, and print which is better on validation data."""
        with tempfile.TemporaryDirectory() as folder, heard_by(_nobody):
            plain = RunFolder(Path(folder) / "untuned")
            start(parse(_with(self.line, [("out", str(plain.path))])), QUIET, Experiment)
            tuned, untuned = (_on_validation(run, self.metric) for run in (RunFolder(best), plain))
        console.print(
            f"{self.metric.upper()} on validation data: {tuned:.4f} of the kept run; {untuned:.4f} of the unchanged "
            f"recipe with all of ε, whose run is deleted (exact figures, not private)",
            soft_wrap=True,
        )
        if untuned >= tuned:
            console.print("the choice is not worth its price here: train the recipe as it is", soft_wrap=True)

    def _claim(self) -> None:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise UserError(f"{self.folder} exists and holds no choice to go on with: give another --out") from None
        except OSError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror}") from None

    def _picks(self) -> list[int]:
        """Draw how many runs there will be, and the settings of each."""
        random = secrets.SystemRandom()
        return [random.randrange(len(self.candidates)) for _ in range(self.repeated.draw(random.random()))]

    @property
    def _current(self) -> RunFolder:
        """The folder of every run: one name for all, since a number would reveal how many there were."""
        return RunFolder(self.folder / "current")

    def _settle(self, scores: Sequence[float]) -> None:
        """Keep the run that was scored last if it is the best so far; delete the other."""
        run, best = self._current.path, self.folder / "best"
        if not run.exists():  # done already, before the process was killed
            return
        if scores[-1] == max(scores):
            shutil.rmtree(best, ignore_errors=True)
            os.replace(run, best)
        else:
            shutil.rmtree(run)

    def _score_of(self, candidate: Candidate) -> float:
        """Return the score of a run, trained now or continued; one that ended without its score is trained again."""
        run = self._current
        if run.metrics.exists():
            shutil.rmtree(run.path)
        own = [("privacy.epsilon", repr(self.price.epsilon_of_run)), ("out", str(run.path))]
        try:
            with heard_by(_nobody):
                if run.config.exists():
                    trained: Experiment = resume(CommandLine(), run, QUIET, self._kind())
                else:
                    trained = start(parse(_with(self.line, (*candidate, *own))), QUIET, self._kind())
        except Stopped as stopped:
            raise type(stopped)("continue with the same command") from None
        scored = user_by_user(trained.model, _held_out(trained), self.metric, gains_of(trained.data))
        total = torch.tensor([scored], dtype=torch.float64)
        GaussianNoise().add_(total, self.price.score_noise * (1 + ROUNDING))
        return float(total) / self.users

    def _kind(self) -> type[Experiment]:
        promise, epsilon, assumed, coarse = self.promise, self.price.epsilon, self.assumptions, self.coarse

        class Tuned(Experiment):
            """A run whose guarantee includes the cost of the choice."""

            def __init__(self, settings: Settings, checkpoint: Mapping[str, Any] | None = None) -> None:
                super().__init__(settings, checkpoint)
                assert self.privacy is not None
                self.privacy.coarse |= coarse

            def kind_of_model(self, cls: type[Learner]) -> type[Learner]:
                return always_scoring(cls)

            @property
            def assumptions(self) -> list[str]:
                return assumed

            @property
            def guarantee(self) -> str:
                return f"{promise} {super().guarantee}"

            def spending(self) -> dict[str, Any]:
                return super().spending() | {"epsilon": epsilon}

        return Tuned

    def _told(self, chosen: Candidate, score: float, best: Path) -> dict[str, Any]:
        kept = json.loads(RunFolder(best).metrics.read_text(encoding="utf-8"))
        return {
            "chosen": dict(chosen),
            "score": score,
            "score_noise": self.price.score_noise / self.users,
            "metric": self.metric,
            "runs_on_average": self.repeated.mean,
            "candidates": [dict(candidate) for candidate in self.candidates],
            "epsilon": self.price.epsilon,
            "delta": self.price.budget.delta,
            "epsilon_of_run": self.price.epsilon_of_run,
            "guarantee": kept["guarantee"],
        }


def always_scoring(cls: Any) -> Any:
    """Return a model that scores 0 for all items if a user's scores are not finite, which ranks the user's item last.

    An error would end the run. Whether it ends would depend on its users, which the price does not cover.
    """

    class Scoring(cls):  # type: ignore[misc]
        def scores(self, batch: Any) -> torch.Tensor:
            scores: torch.Tensor = super().scores(batch)
            lost = ~torch.isfinite(scores[:, 1:]).all(1, keepdim=True)
            return scores.masked_fill(lost, 0.0)

    return Scoring


def user_by_user(model: Any, held_out: RankingUsers, metric: str, gains: Mapping[str, Any] = GAINS) -> float:
    """Return the sum of a metric over users, each ranked alone.

    In a batch, the rounding of a user's scores depends on others' lengths, which may swap items with close scores.
    """
    kind, _, cutoff = metric.partition("@")
    alone, total = copy.copy(held_out), 0.0
    alone.groups = [np.array([user]) for user in range(held_out.users)]
    with torch.inference_mode():
        for number in range(len(alone)):
            batch = alone[number].to(model.device)
            _, masked = both_ranks(model.scores(batch), batch.target, batch.seen)
            total += min(max(float(gains[kind](masked, int(cutoff))), 0.0), 1.0)
    return total


def _nobody(text: str) -> None:
    """Do nothing: the notices about the data were printed with the price."""


def _on_validation(run: RunFolder, metric: str) -> float:
    return float(json.loads(run.metrics.read_text(encoding="utf-8"))["validation"][metric])


def _held_out(experiment: Experiment) -> RankingUsers:
    found: RankingUsers = experiment.data.val_dataloader().dataset
    return found


def _with(line: CommandLine, more: Sequence[tuple[str, str]]) -> CommandLine:
    return CommandLine(recipes=list(line.recipes), overrides=[*line.overrides, *more])


def _refuse_other_log(own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse settings that change the users or their events: the price holds only if these are the same."""
    settings, others = own["init_args"], other["init_args"]
    changed = [key for key in settings | others if settings.get(key) != others.get(key)]
    fixed = sorted({*changed} - SAME_LOG)
    if own["class_path"] != other["class_path"] or fixed:
        raise UserError(
            f"--try {f'data.{fixed[0]}' if fixed else 'data'}: all runs of a choice read and sample one log in the "
            "same way; set it without --try"
        )


def _refuse_unfit(experiment: Experiment, named: str) -> None:
    """Refuse experiments that cannot be chosen from, or whose price is not known."""
    privacy, tree = experiment.privacy, experiment.settings.tree
    if privacy is None or privacy.epsilon is None:
        raise UserError("tune needs a budget that pays for the choice: add --privacy.epsilon 8")
    if privacy.strategies.broken or privacy.repeatable:
        raise UserError(f"{named} is not private, so neither is the choice: {privacy.guarantee()}")
    if tree["privacy"]["init_args"].get("noise_multiplier") is not None:
        raise UserError("privacy.noise_multiplier is set, and tune computes it: leave it out")
    if not isinstance(experiment.task, Ranking):
        raise UserError(
            f"tune scores what recommenders rank, and {type(experiment.model).__name__} is none: choose its settings "
            "on public data"
        )
    if experiment.metrics[0].partition("@")[0] not in GAINS:
        raise UserError(
            f"tune scores by a metric that each user adds 0 to 1 to ({', '.join(GAINS)}): set --metrics ndcg@10"
        )
    if not getattr(experiment.data, "validation", False):
        raise UserError("tune scores on validation data, and data.validation is false: add --data.validation true")
    held_out = _held_out(experiment)
    if not isinstance(held_out, RankingUsers):
        raise UserError(f"{path_of(type(experiment.data))} serves no users to rank: give dprec.data.Sequences")
    if held_out.population > held_out.users:
        raise UserError("tune scores all users, and data.metrics_users takes a sample: raise it to their number")
    if str(tree["trainer"]["devices"]) != "1" or tree["trainer"]["num_nodes"] != 1:
        raise UserError("tune trains on one device: set trainer.devices to 1")
