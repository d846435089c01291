"""One run: makes data, guarantee and model, trains and evaluates the model, and writes the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import SIGTERMException
from rich.console import Console

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import resolve
from dprec.cli.command import Stopped, Terminated
from dprec.cli.parser import Settings
from dprec.data.module import SampledData
from dprec.data.sequences import PRIVATE
from dprec.distributed.ending import report_once
from dprec.distributed.first import first_process
from dprec.distributed.ranks import group_of
from dprec.errors import AlreadyReported, UserError
from dprec.gradients.parameters import trained_parameters
from dprec.models import Learner
from dprec.models.learning.kept import NOT_PRIVATE, belongings
from dprec.run.console import (
    data_table,
    hint_of_tables,
    hints_of,
    notice_box,
    peak_memory_mb,
    promise,
    show,
    warning_of_delta,
)
from dprec.run.planning import fit_batch, settle_catalogue, sizes_for, total_steps
from dprec.run.process import keep_freed_memory, one_line_of_a_card, stopped_after_a_step
from dprec.run.rows_read import what_eana_reveals
from dprec.run.saved.earlier import EarlierRun
from dprec.run.saved.folder import RunFolder, full_disk_is_one_line, training_alone, write_json, write_private_json
from dprec.run.saved.resume import refuse_other_content, refuse_other_data, resume_command, stored_settings
from dprec.run.tasks import RESAMPLED, task_of
from dprec.run.trainer import SaveRun, TrainingProgress, make_trainer, refuse_unsafe, said_of
from dprec.sparsity.rows.tables import tables_of
from dprec.training.callback import Privacy


class Experiment:
    """The objects of a run's settings, made in the order that finds mistakes earliest."""

    def __init__(self, settings: Settings, checkpoint: Mapping[str, Any] | None = None) -> None:
        keep_freed_memory()
        tree = settings.tree
        self.settings = settings
        self.folder: RunFolder | None = None  # of its metrics, once they are written
        refuse_unsafe(tree["trainer"])
        self.privacy: Privacy | None = settings.make("privacy")
        model: Any = resolve(Learner, tree["model"]["class_path"], "model.class_path")
        self.task = task_of(model)
        self.metrics = self.task.asked(tree["metrics"])
        self.task.beside(tree["baselines"])
        if checkpoint is None:
            model.check_files(tree["model"]["init_args"])
        self.data: Any = settings.make("data")
        if not tree["metrics"]:
            self.metrics = self.task.metrics_for(self.data)
        self._continue(tree["continue_from"], checkpoint)
        settle_catalogue(self.data, self.privacy, checkpoint)
        self.data.setup("fit")
        fit_batch(settings, self.data)
        self.batches = self.data.batches
        self.steps = total_steps(settings, self.batches)
        self.sizes = sizes_for(model, self.data)
        pl.seed_everything(tree["seed"], verbose=False)
        self.model: Learner = settings.make("model", self.sizes, self.kind_of_model(model))
        self.task.refuse_unmeasurable(self.model, self.data, self.metrics)
        if self.earlier is not None:
            self.earlier.refuse_other(self._facts(), self.data)
            if self.model.goes_on:
                self.earlier.hand_on(self.model)
        if self.privacy is not None:
            self.privacy.plan(self.batches, self.steps, self.model.releases)

    def _continue(self, named: str | None, checkpoint: Mapping[str, Any] | None) -> None:
        """Take over items and ledger of the run that this one continues, or that a resumed one continued."""
        self.earlier = EarlierRun.read(named) if named is not None and checkpoint is None else None
        self.first_items: list[str] = []
        if self.earlier is not None:
            self.settings.tree["continue_from"] = str(self.earlier.folder.path)
            self.first_items = self.earlier.items
            if self.privacy is not None:
                self.privacy.continue_from(self.earlier.promise, str(self.earlier.folder.path))
        elif named is not None and checkpoint is not None:
            ours = checkpoint["dprec"]
            self.first_items = ours.get("catalogue", [])[: ours.get("first_items", 0)]
            if self.privacy is not None:
                self.privacy.restore_chain(ours["guarantee"])
        if self.first_items and hasattr(self.data, "begin_with"):
            self.data.begin_with(self.first_items)

    def going_on_in(self, run: RunFolder) -> AbstractContextManager[None]:
        """Lock the run that this one continues, if any."""
        return nullcontext() if self.earlier is None or not first_process() else self.earlier.continued_in(run)

    def kind_of_model(self, cls: type[Learner]) -> type[Learner]:
        """Return the class to train instead of the named one."""
        return cls

    @property
    def name(self) -> str:
        return self.settings.name + ("-stand-in" if self.data.stand_in else "")

    @property
    def guarantee(self) -> str:
        return NOT_PRIVATE if self.privacy is None else self.privacy.guarantee(self.assumptions)

    def spending(self) -> dict[str, Any]:
        """ε spent so far, δ and σ; null in each for a run without privacy."""
        if self.privacy is None:
            return {"epsilon": None, "delta": None, "noise_multiplier": None}
        return self.privacy.spending

    @property
    def assumptions(self) -> list[str]:
        return [*self.data.assumptions, *self.model.assumptions]

    @property
    def identity(self) -> dict[str, Any]:
        """What the ledger describes; if any of it changes, a resumed run is not the same run."""
        return {
            f"{self.data.unit}s": self.data.users,
            "data.fingerprint": self.data.fingerprint,
            "data.sampling": self.batches.kind,
            "data.batch_size": self.batches.expected_batch,
            "steps": self.steps,
        }

    def train(self, run: RunFolder, console: Console, checkpoint: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Train to the end, from ``checkpoint`` if there is one, and return the content of metrics.json."""
        content: str | None = getattr(self.data, "content", None)
        if checkpoint is not None:
            refuse_other_data(checkpoint, self.identity, self.data, run)
            refuse_other_content(content, run)
            self.batches.step = checkpoint["dprec"]["step"]
            console.print(f"continuing {run.path} from step {self.batches.step}", soft_wrap=True)
        notice_box(console, self.data.notice)
        console.print(promise(self.privacy, self.steps), soft_wrap=True)
        if self.privacy is not None:
            of_clipping = self.task.warning_of_clipping(self.privacy.clipping.mode, self.data.unit)
            for warning in (warning_of_delta(self.privacy.delta), of_clipping):
                if warning is not None:
                    console.print(warning, soft_wrap=True)
        tables = tables_of(self.model, trained_parameters(self.model))
        if (hint := hint_of_tables(self.privacy, tables)) is not None:
            console.print(hint, soft_wrap=True)
        if summary := getattr(self.data, "summary", None):
            console.print(data_table(summary, f"{self.data.name}: exact counts, not private"))
            for hint in hints_of(summary):
                console.print(hint, soft_wrap=True)
        if self.earlier is not None:
            self.earlier.refuse_older(summary or {}, content)
            known, anew = len(self.first_items), "" if self.model.goes_on else "; the model describes all items anew"
            more = f", {known:,} items keep their rows, {self.sizes['items'] - 1 - known:,} new" if known else ""
            console.print(f"goes on from {self.earlier.folder.path}{more}{anew}", soft_wrap=True)
        if private := {**(summary or {}), **({} if content is None else {"content": content})}:
            write_private_json(run.data, private)
        save = SaveRun(run, self._facts(), self._guarantee_so_far, self.settings.tree["checkpoint_every"])
        trainer = make_trainer(self.settings, run, self.steps, self._callbacks(console, save))
        if not first_process() and trainer.world_size == 1:
            raise UserError(
                "the environment numbers this process as one of several (RANK, LOCAL_RANK, NODE_RANK or SLURM_PROCID), "
                "and trainer.devices is 1: set trainer.devices, or clear them"
            )
        if trainer.world_size > 1 and checkpoint is None and getattr(self.data, "catalogue_from", None) == PRIVATE:
            raise UserError(
                "data.catalogue is private, and each process would choose another: begin with trainer.devices 1 and "
                "continue it on several with --resume"
            )
        device = trainer.strategy.root_device
        console.print(said_of(device), soft_wrap=True)
        self._fit(trainer, run, resume=checkpoint is not None)  # no step, if the run was killed after its last one
        ranks = group_of(device)
        if ranks.size == 1 and not first_process():
            return {}  # nothing was trained, so processes are not connected
        watched = {}
        with _told_once(lambda: self.how_to_continue(run)):
            if getattr(self.data, "validation", False):
                judged = self.task.judge(self.model, self.data, "validation", self.metrics, device, ranks)
                judged.pop(RESAMPLED, None)
                watched = {"validation": judged}
            # Only here the test split is evaluated.
            results = self.task.judge(self.model, self.data, metrics=self.metrics, device=device, ranks=ranks)
        if not first_process():
            return {}  # the first process writes
        resampled = results.pop(RESAMPLED, None)
        saved = {} if self.privacy is None else self.privacy.strategies.report()  # by strategies for tables
        reveals = what_eana_reveals(self.privacy, self.model, self.data)
        report = {
            "run": self.name,
            **self.task.describe(self.data),
            **self.spending(),
            "guarantee": self.guarantee,
            **({"sparsity": saved} if saved else {}),
            **({"revealed_not_private": reveals} if reveals else {}),
            "sampling_rate": self.batches.rate,
            "steps": trainer.global_step,
            **results,
            **watched,
            "seed": self.settings.tree["seed"],
            "seconds": round(save.seconds, 2),
            "peak_memory_mb": peak_memory_mb(),
        }
        if resampled is not None:
            write_private_json(run.resampled, resampled)
        write_json(run.metrics, report)
        self.folder = run
        table = self.task.table(results, f"{self.name}: {self.task.size(self.data)}")
        said = [self.task.verdict(results), self.task.warning(results), *getattr(self.model, "findings", ())]
        show(console, table, said, report, run, self.steps)
        return report

    def _fit(self, trainer: pl.Trainer, run: RunFolder, resume: bool) -> None:
        with stopped_after_a_step(trainer) as pressed:
            try:
                with _told_once(lambda: self.how_to_continue(run)):
                    trainer.fit(self.model, datamodule=self.data, ckpt_path=str(run.checkpoint) if resume else None)
            except SystemExit as error:  # Lightning raises this after a second Ctrl-C, and a subclass after SIGTERM
                raise self._stopped(run, isinstance(error, SIGTERMException) and not pressed()) from None
            except KeyboardInterrupt:  # while Lightning ends a run that the first has stopped
                raise self._stopped(run, terminated=False) from None
        if self.privacy is not None and self.privacy.steps != trainer.global_step:
            raise UserError(
                f"the model in {run.path} has taken {trainer.global_step} steps, its ledger {self.privacy.steps}, "
                "so no guarantee holds: start a new run"
            )
        if pressed():
            raise self._stopped(run, terminated=False)

    def _stopped(self, run: RunFolder, terminated: bool) -> BaseException:
        said = self.how_to_continue(run)
        if not first_process():
            return AlreadyReported(said)
        return Terminated(said) if terminated else Stopped(said)

    def how_to_continue(self, run: RunFolder) -> str:
        """Return the notice for a run that was stopped."""
        command = resume_command(run.path, self.settings.tree)
        if run.checkpoint.exists():
            return f"continue with: {command}"
        every = self.settings.tree["checkpoint_every"]
        return (
            f"nothing is saved before the first checkpoint (checkpoint_every is {every}): begin again with: {command}"
        )

    def _callbacks(self, console: Console, save: SaveRun) -> list[pl.Callback]:
        callbacks: list[pl.Callback] = [] if self.privacy is None else [self.privacy]
        if self.settings.tree["trainer"]["enable_progress_bar"] is not False and first_process():
            callbacks.append(TrainingProgress(self.steps, self.task, self.privacy, console))
        return [*callbacks, save]  # last, so that a checkpoint holds what the others did in this step

    def _facts(self) -> dict[str, Any]:
        """The part of a checkpoint with which the model can be used and evaluated without other files."""
        tree = self.settings.tree
        return {
            "run": self.name,
            "model": {**tree["model"], "init_args": {**tree["model"]["init_args"], **self.sizes}},
            "data": self._data_settings(),
            **belongings(self.data),
            "dataset": self.data.name,
            "stand_in": self.data.stand_in,
            "notice": self.data.notice,
            "identity": self.identity,
            "metrics": tree["metrics"],
            "baselines": tree["baselines"],
            "first_items": len(self.first_items),
        }

    def _data_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.settings.tree["data"]
        if not isinstance(self.data, SampledData):
            return settings
        return {**settings, "init_args": self.data.with_files_written_out(settings["init_args"])}

    def _guarantee_so_far(self) -> dict[str, Any]:
        """The content of privacy.json and of a checkpoint about the guarantee so far."""
        ledger = {} if self.privacy is None else self.privacy.chain | self.privacy.ledger.state_dict()
        return {
            "guarantee": self.guarantee,
            **self.spending(),
            "settings": self.settings.tree["privacy"],
            "assumed_public": self.assumptions,
            **ledger,
        }


@contextmanager
def _told_once(after_a_loss: Callable[[], str]) -> Iterator[None]:
    """A context in which one process's error ends all and is reported once; `after_a_loss()` says how to continue."""
    try:
        with one_line_of_a_card():
            yield
    except (UserError, RuntimeError) as error:
        told = report_once(error, after_a_loss())
        if told is error:
            raise
        raise told from error


Kind = TypeVar("Kind", bound=Experiment)


def start(settings: Settings, console: Console, kind: type[Kind]) -> Kind:
    """Start a new run; claim its folder only after all checks of the settings. Return the experiment."""
    if settings.out is not None and first_process():
        RunFolder(Path(settings.out)).refuse_if_taken()
    experiment = kind(settings)
    run = RunFolder.numbered(experiment.name) if settings.out is None else RunFolder(Path(settings.out))
    if not first_process():  # the folder is the first process's, and the rest have nothing to write there
        experiment.train(run, console)
        return experiment
    run.claim(settings.to_yaml())
    with experiment.going_on_in(run), training_alone(run.config):
        try:
            with full_disk_is_one_line(run):
                experiment.train(run, console)
        except Exception:
            run.release()
            raise
    return experiment


def resume(line: CommandLine, run: RunFolder, console: Console, kind: type[Kind], trusted: Sequence[str] = ()) -> Kind:
    """Continue an interrupted run; read its checkpoint only after no other process can write one."""
    with training_alone(run.config) if first_process() else nullcontext():
        run.refuse_if_finished()
        run.refuse_if_continued()
        if first_process():
            run.clear_parts()
        settings, checkpoint = stored_settings(line, run, trusted)
        experiment = kind(settings, checkpoint)
        if checkpoint is None and first_process():
            console.print(f"{run.path} has no checkpoint: it begins again", soft_wrap=True)
        with experiment.going_on_in(run), full_disk_is_one_line(run):
            experiment.train(run, console, checkpoint)
    return experiment
