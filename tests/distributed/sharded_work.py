"""What processes with sharded tables do in the tests: small runs, saved whole, and single steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dprec.data import Clicks
from dprec.distributed.owners import Reading
from dprec.distributed.ranks import Group, Ranks
from dprec.distributed.sharded import Shard, ShardedTable, bounds, own_rows, sharded
from dprec.distributed.whole import whole
from dprec.gradients.clipping import Clipping
from dprec.models import DLRM, PCTR, Logistic
from dprec.models.learning import table_files
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.run.tasks import task_of
from dprec.sparsity import EANA, FEST, AdaFEST, ExponentialSelection, LazyDP
from dprec.sparsity.rows.row_rules import RowRules
from dprec.training.callback import Privacy
from tests.distributed.work import FLAT, SEEDS, STEPS, Halfway, dealt, told

FAR: dict[str, Any] = {"warmup": 0.0, "final_rate": 1.0}  # rows move by more than rounding
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, **FAR}
CLICKS: dict[str, Any] = {"hidden": [8], "weight_decay": 0.0, "learning_rate": 0.05, **FAR}
SMALL: dict[str, Any] = {"dim": 4, "bottom": [8], "top": [8], **SGD}
REPLAYED: dict[str, Any] = {"sparsity": LazyDP(aggregate=False)}
MOMENTUM = SMALL | {"momentum": 0.5, "weight_decay": 1e-3}

# name -> the model, its options, and what privacy is given
RUNS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "DLRM with LazyDP": (DLRM, SMALL, REPLAYED),
    "DLRM with momentum": (DLRM, MOMENTUM, REPLAYED | {"noise_multiplier": 0.0}),
    "PCTR with LazyDP": (PCTR, CLICKS | SGD, REPLAYED),
    "AdaFEST": (PCTR, CLICKS, {"sparsity": AdaFEST(threshold=2.0)}),
    "AdaFEST behind FEST": (PCTR, CLICKS, {"epsilon": 8, "sparsity": [FEST(keep=60), AdaFEST(threshold=2.0)]}),
    "exponential selection": (DLRM, SMALL, {"sparsity": ExponentialSelection(keep=60)}),
    "EANA": (Logistic, SGD, {"sparsity": EANA()}),
}
LARGE = "DLRM with momentum"  # its tables count as too large to be made whole in memory
RESUMED = ("DLRM with momentum", "AdaFEST")  # of LazyDP each part of a run has noise of its own


def clicks(**options: Any) -> Clicks:
    """Clicks with tables of which six steps read a part, and some of which the last of four processes has no row."""
    given: dict[str, Any] = {"synthetic_records": 600, "table_scale": 1e-3, "batch_size": 40, "micro_batch": 16}
    return Clicks("synthetic", **given | {"sampling_seed": 5} | options)


def trained(
    name: str,
    processes: int,
    file: Path | None = None,
    keep: Path | None = None,
    resume: Path | None = None,
    validated: bool = False,
    steps: int = STEPS,
    **privacy: Any,
) -> dict[str, Any]:
    """Train one of the runs with shard_tables, and save it; return what this process keeps, and what is told of it."""
    kind, options, own = RUNS[name]
    data = clicks() if "noise_seed" not in privacy else clicks(sampling_seed=None)
    data.setup()
    pl.seed_everything(3, verbose=False)
    model = kind(**data.sizes, **options, shard_tables=True)
    run = Privacy(**SEEDS | FLAT | {"verify": 0.0} | own | privacy)
    warnings.simplefilter("ignore")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=processes,
        max_steps=steps,
        callbacks=[run, *([Halfway(keep)] if keep else [])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1.0 if validated else 0,
        val_check_interval=2,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, data, ckpt_path=resume)
    if file is not None:
        trainer.save_checkpoint(file)
    tables = {name: p for name, p in model.named_parameters() if name.startswith("tables.tables")}
    judged = {key: float(value) for key, value in trainer.callback_metrics.items() if validated}
    return {
        "kept": {name: len(own_rows(table)[0]) for name, table in tables.items()},
        "rows": {name: len(table) for name, table in tables.items()},
        "steps": run.steps,
        "spent": run.spent,
        "judged": judged,
    }


class OneTable(nn.Module):
    """A user reads some rows of one table, and has the gradient `slope` in each of their numbers."""

    def __init__(self, rows: int, width: int, ranks: Ranks) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="sum", padding_idx=0)
        first, stop = bounds(rows, ranks.size)[ranks.number : ranks.number + 2]
        shard = Shard(values=torch.zeros(stop - first, width), first=first)
        self.table.weight = nn.Parameter(ShardedTable((rows, width), shard, torch.float32))

    def losses(self, users: Tensor) -> Tensor:
        """Of users who are rows (B, 1 + P): a slope, and the ids that are read."""
        return self.table(users[:, 1:].long()).sum(1) * users[:, 0]


class OneStep:
    """Single steps on one table of several processes; `parts` are this one's micro-batches."""

    def __init__(self, strategy: Any, ranks: Ranks, sigma: float, rows: int = 40, width: int = 3) -> None:
        self.ranks, self.model = ranks, OneTable(rows, width, ranks)
        noise = GaussianNoise(11)
        noise.ranks = ranks
        step_noise = StepNoise(noise.at(0), sigma, expected_batch=1.0, at_most=1000.0)
        self.rules, self.parameters = RowRules([strategy]), dict(self.model.named_parameters())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.rules.begin(self.model, self.parameters, step_noise, 1.0)
        self.rules.guard(self.model, self.optimizer, 0)
        self.gradient = PrivateGradient(Clipping("flat", 1.0), step_noise, rules=self.rules)
        self.reading = Reading(sharded(self.parameters), ranks, {"table.weight": (0,)})

    def take(self, parts: list[Tensor]) -> None:
        with self.rules.listing():
            self.reading.fetch(lambda: [self.model.losses(part) for part in parts], self.rules.give_away)
        self.gradient(self.parameters, self.model.losses, parts)
        self.reading.close()

    def made(self, parts: list[Tensor]) -> Tensor:
        """Return the gradient of all processes' users, or its noise, in the first process."""
        self.take(parts)
        table = self.model.table.weight
        gradient, own = self.rules.held.get("table.weight", table.grad), table.shard
        held = torch.zeros_like(own.values)
        held[gradient.indices()[0] - own.first] = gradient.values()
        return whole(table.with_values(held), self.ranks, lambda shape, dtype: torch.empty(shape, dtype=dtype))

    def after(self, parts: list[Tensor], steps: int = 1) -> Tensor:
        """Return the table after such steps, with all noise, in the first process."""
        for _ in range(steps):
            self.take(parts)
            self.rules.update(self.optimizer)
        self.rules.settle()
        table = self.model.table.weight
        return whole(table, self.ranks, lambda shape, dtype: torch.empty(shape, dtype=dtype))


ALL = ("AdaFEST", "LazyDP", "LazyDP, at once")


def strategy_of(name: str) -> Any:
    """Return a strategy that lets every row change."""
    return AdaFEST(threshold=-1e6) if name == "AdaFEST" else LazyDP(aggregate=name != "LazyDP")


def users() -> Tensor:
    """Twelve users, who read up to three rows of 40; some have gradients far longer than the clipping norm."""
    luck = torch.Generator().manual_seed(1)
    slopes = torch.logspace(-1, 2, 12).unsqueeze(1)
    return torch.cat([slopes, torch.randint(0, 40, (12, 3), generator=luck)], 1)


def judged(ranks: Ranks, metrics: str = "auc,log_loss", **options: Any) -> dict[str, Any]:
    """Judge an untrained model together with the other processes."""
    data = clicks(**options)
    data.setup()
    pl.seed_everything(3, verbose=False)
    model = DLRM(**data.sizes, **SMALL, shard_tables=True)
    if ranks.size > 1:
        trainer = pl.Trainer(accelerator="cpu", devices=ranks.size, logger=False)
        model.trainer = trainer
    model.configure_model()
    task = task_of(DLRM)
    return task.judge(model, data, metrics=task.asked(metrics), ranks=ranks)


FEW = {"micro_batch": 10_000}  # one held-out batch, so that a process has none


@contextmanager
def counted_files(most: int) -> Iterator[list[Any]]:
    """Let tables of more than so many bytes take a file where they are made whole; yield the files' tensors."""
    made: list[Any] = []
    own, before = table_files.file_tensor, table_files.IN_MEMORY

    def counting(*given: Any) -> Tensor:
        made.append(own(*given))
        return made[-1]

    table_files.file_tensor, table_files.IN_MEMORY = counting, most
    try:
        yield made
    finally:
        table_files.file_tensor, table_files.IN_MEMORY = own, before


def everything(number: int, processes: int, folder: Path, names: list[str]) -> None:
    """Do what the processes are asked, and write this one's answers."""
    answers: dict[str, Any] = {}
    for name in names:
        with counted_files(0 if name == LARGE else table_files.IN_MEMORY) as files:
            answers[name] = trained(name, processes, folder / f"{name}.ckpt", folder / f"{name}, half.ckpt")
        answers[f"{name}, files"] = len(files)
    for name in RESUMED if RESUMED[0] in names else ():
        half = folder / f"{name}, half alone.ckpt"
        answers[f"{name}, resumed"] = trained(name, processes, folder / f"{name}, resumed.ckpt", resume=half)
    answers["checked"] = trained("DLRM with LazyDP", processes, steps=3, validated=True, verify=1.0, noise_seed=None)
    answers["at once, checked"] = trained(
        "DLRM with LazyDP", processes, steps=3, verify=1.0, noise_seed=None, sparsity=LazyDP()
    )
    answers["chosen, checked"] = trained("AdaFEST", processes, steps=3, verify=1.0, noise_seed=None)
    ranks = Group()
    for strategy in ALL:
        for who, mine in dealt(processes).items():
            own = [users()[mine[number]]] if mine[number] else []
            answers[f"{strategy}, {who}"] = OneStep(strategy_of(strategy), ranks, sigma=0.0).made(own)
        steps = OneStep(strategy_of(strategy), ranks, sigma=2.0, rows=2_000, width=8)
        answers[f"{strategy}, noise"] = steps.made([]) if strategy == "AdaFEST" else steps.after([], 3)
    answers["judged"], answers["judged, one batch"] = judged(ranks), judged(ranks, **FEW)
    answers["bytes"] = {rows: sent(ranks, rows) for rows in (1_000, 100_000)}
    answers["elsewhere"] = told(partial(_read_unfetched, ranks))
    torch.save(answers, folder / f"{number}.pt")


def sent(ranks: Ranks, rows: int) -> int:
    """Return how many bytes this process gives in a step in which its users read 50 rows."""
    step, count = OneStep(LazyDP(aggregate=False), ranks, 1.0, rows), 0
    own = dist.all_to_all_single

    def counting(found: Tensor, given: Tensor, *rest: Any) -> Any:
        nonlocal count
        count += given.numel() * given.element_size()
        return own(found, given, *rest)

    ids = 1 + ranks.number * (rows // ranks.size) + torch.arange(50).unsqueeze(1)
    dist.all_to_all_single = counting
    try:
        step.take([torch.cat([torch.ones(50, 1), ids], 1)])
    finally:
        dist.all_to_all_single = own
    return count


def weighed(number: int, processes: int, folder: Path) -> None:
    """Write how much a table takes of this process's memory, of which nothing was used and let go before."""
    dist.init_process_group("gloo", rank=number, world_size=processes)
    (folder / f"{number} of {processes}").write_text(str(memory(Group())))
    dist.destroy_process_group()


def memory(ranks: Ranks) -> float:
    """Return how much a table of 61 MiB, and a step on it, take of this process's memory, in MiB."""

    def now() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = now()
    step = OneStep(LazyDP(aggregate=False), ranks, 1.0, rows=1_000_000, width=16)
    step.model.table.weight.shard.values.fill_(0.5)
    step.take([users()])
    step.rules.update(step.optimizer)
    return now() - before


def _read_unfetched(ranks: Ranks) -> None:
    OneTable(40, 3, ranks).losses(torch.tensor([[1.0, 5.0], [1.0, 35.0]]))
