"""What several processes do in the tests: the same small runs, each process with its part of the users."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from dprec.data import Clicks, Sequences
from dprec.distributed.ranks import Group, Ranks
from dprec.gradients.clipping import Clipping
from dprec.models import DLRM, GRU, PCTR, DPFormer, SpectralFormer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.run.tasks import task_of
from dprec.sparsity import FEST, AdaFEST, ExponentialSelection, LazyDP
from dprec.training.callback import Privacy
from tests import warm
from tests.quiet import SaveAt, trainer

PATIENCE = 400  # seconds, on a busy machine
STEPS = 6
SEEDS = {"noise_seed": 7, "noise_multiplier": 1.0}


def histories(**options: Any) -> Sequences:
    given: dict[str, Any] = {"synthetic_users": 60, "synthetic_items": 22, "min_events": 0, "max_length": 9}
    given |= {"batch_size": 12, "tokens": 40, "sampling_seed": 5}
    return Sequences("synthetic", **given | options)


def clicks() -> Clicks:
    return Clicks("synthetic", synthetic_records=600, table_scale=1e-5, batch_size=40, micro_batch=16, sampling_seed=5)


# A dropped unit depends on the order of draws: without dropout runs can be compared.
SMALL: dict[str, Any] = {"dim": 8, "blocks": 1, "feedforward": 8, "dropout": 0.0}
RECURRENT: dict[str, Any] = {"dim": 8, "dropout": 0.0}
SPECTRAL: dict[str, Any] = {"rank": 4, "top": 8, "blocks": 1, "feedforward": 8, "dropout": 0.0}
CLICKS: dict[str, Any] = {"hidden": [8], "weight_decay": 0.0}
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.0}
FLAT: dict[str, Any] = {"clipping": "flat", "max_norm": 1.0}
RESUMED = ("GRU", "AdaFEST")  # LazyDP draws other noise for each part of a run

# name -> the data, the model and what privacy is given
RUNS: dict[str, tuple[Callable[[], Any], type[Any], dict[str, Any], dict[str, Any]]] = {
    "DPFormer": (histories, DPFormer, SMALL, {"epsilon": 8} | SEEDS),
    "SpectralFormer": (histories, SpectralFormer, SPECTRAL, {"epsilon": 8} | SEEDS),
    "GRU": (histories, GRU, RECURRENT, SEEDS),
    "AdaFEST": (
        clicks,
        PCTR,
        CLICKS,
        SEEDS | FLAT | {"sparsity": AdaFEST(threshold=2.0)},
    ),
    "FEST": (
        clicks,
        PCTR,
        CLICKS,
        {"epsilon": 8} | SEEDS | FLAT | {"sparsity": FEST(keep=30)},
    ),
    "Exponential": (
        clicks,
        PCTR,
        CLICKS,
        SEEDS | FLAT | {"sparsity": ExponentialSelection(keep=30)},
    ),
    "LazyDP": (
        clicks,
        DLRM,
        {"dim": 4, "bottom": [8], "top": [8], **SGD},
        SEEDS | FLAT | {"sparsity": LazyDP(aggregate=False)},
    ),
}


def trained(name: str, processes: int, **options: Any) -> dict[str, Any]:
    """Train one of these runs; return where it ended, and what it says that it spent."""
    make, kind, arguments, privacy = RUNS[name]
    return fitted(make(), kind, arguments, Privacy(**privacy, verify=0.0), processes, **options)


def fresh(processes: int, **options: Any) -> dict[str, Any]:
    """Train with the same draws each time, and secret noise."""
    return fitted(histories(), GRU, RECURRENT, Privacy(noise_multiplier=1.0, verify=0.0), processes, **options)


def fitted(
    data: Any,
    kind: type[Any],
    options: dict[str, Any],
    privacy: Privacy | None,
    processes: int,
    steps: int = STEPS,
    keep: Path | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    data.setup()
    pl.seed_everything(3, verbose=False)
    model = kind(**data.sizes, **options)
    callbacks = [*([privacy] if privacy else []), *([SaveAt(STEPS // 2, keep)] if keep else [])]
    run = trainer(*callbacks, devices=processes, max_steps=steps, num_sanity_val_steps=0)
    run.fit(model, data, ckpt_path=resume)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    counted = {} if privacy is None else {"steps": privacy.steps, "spent": privacy.spent}
    return {"state": state, **counted}


class Vectors:
    """A model of one vector, in which a user's gradient is the user's row."""

    def __init__(self, size: int) -> None:
        self.parameters = {"w": nn.Parameter(torch.zeros(size))}

    def losses(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(rows, self.parameters["w"].unsqueeze(0)).squeeze(1)


def released(ranks: Ranks, rows: list[Tensor], sigma: float, size: int, seed: int | None = None) -> Tensor:
    """Return the sum that these micro-batches of this process and those of all others give together."""
    expected, noise = 64.0, GaussianNoise(seed)
    noise.join(ranks)
    model = Vectors(size)
    gradient = PrivateGradient(Clipping("flat", 1.0), StepNoise(noise.at(0), sigma, expected))
    gradient(model.parameters, model.losses, rows)
    grad = model.parameters["w"].grad
    assert grad is not None
    return grad * expected


def start(task: Callable[..., None], processes: int, *given: Any, method: str = warm.METHOD) -> None:
    """Run a task in so many processes that torch.distributed connects; raise what one of them raises.

    Copies of one process hash alike and have the same NumPy generators; those of `method` "spawn" do not.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.start_processes(  # type: ignore[no-untyped-call]
        _begin, args=(processes, port, task, given), nprocs=processes, join=False, start_method=method
    )
    assert context is not None
    while not context.join(timeout=PATIENCE):
        pass


def _begin(number: int, processes: int, port: int, task: Callable[..., None], given: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "NODE_RANK": "0",
        "LOCAL_RANK": str(number),
    }
    task(number, processes, *given)


def everything(number: int, processes: int, folder: Path) -> None:
    """Do what the processes are asked, and write this one's answers."""
    answers: dict[str, Any] = {name: trained(name, processes, keep=folder / f"{name}.ckpt") for name in RUNS}
    for name in RESUMED:
        answers[f"{name}, resumed"] = trained(name, processes, resume=folder / f"{name}, alone.ckpt")
    answers["plain"] = fitted(histories(), GRU, RECURRENT, None, processes)
    checked = Privacy(noise_multiplier=1.0, verify=1.0)
    answers["secret"] = fitted(histories(sampling_seed=None), GRU, RECURRENT, checked, processes, steps=3)
    answers["fresh"] = fresh(processes, keep=folder / "fresh.ckpt")
    ranks = Group()
    answers["noise"] = released(ranks, [], sigma=2.0, size=20_000)
    rows = users()
    for name, mine in dealt(processes).items():
        own = [rows[mine[number]]] if mine[number] else []
        answers[name] = released(ranks, own, sigma=1.0, size=rows.shape[1], seed=3)
        answers[f"{name}, exact"] = released(ranks, own, sigma=0.0, size=rows.shape[1])
    for name in JUDGED:
        answers[f"{name}, judged"] = judged(name, ranks)
    answers["different"] = told(lambda: ranks.refuse_different("differ", number))
    answers["same"] = told(lambda: ranks.refuse_different("differ", processes))
    answers["shared"] = ranks.shared((1 << 255) + 5 + number) == (1 << 255) + 5
    torch.save(answers, folder / f"{number}.pt")


def some(number: int, processes: int, folder: Path, names: list[str]) -> None:
    """Train some of the runs, and write where they end."""
    torch.save({name: trained(name, processes) for name in names}, folder / f"{number}.pt")


# name -> the data, the model, and metrics: of several held-out batches, and of fewer than there are processes
JUDGED: dict[str, tuple[Callable[[], Any], type[Any], dict[str, Any], str]] = {
    "rankings": (histories, GRU, RECURRENT, "ndcg@3,mrr@10,coverage@5,novelty@5"),
    "a sample in one batch": (partial(histories, tokens=100_000, metrics_users=30), GRU, RECURRENT, "hit@3"),
    "clicks": (clicks, PCTR, CLICKS, "auc,log_loss"),
}


def judged(name: str, ranks: Ranks) -> dict[str, Any]:
    """Judge an untrained model together with the other processes."""
    make, kind, options, metrics = JUDGED[name]
    data = make()
    data.setup()
    pl.seed_everything(3, verbose=False)
    task = task_of(kind)
    return task.judge(kind(**data.sizes, **options), data, metrics=task.asked(metrics), ranks=ranks)


def users() -> Tensor:
    """Twelve users, of whom some have a gradient far longer than the clipping norm."""
    return torch.randn(12, 6, generator=torch.Generator().manual_seed(1)) * torch.logspace(-1, 2, 12).unsqueeze(1)


def dealt(processes: int) -> dict[str, list[list[int]]]:
    """Whose users are whose: in turns, all of the first process, all of the last, without the last user."""
    everybody = list(range(12))
    nobody: list[list[int]] = [[] for _ in range(processes - 1)]
    return {
        "in turns": [everybody[number::processes] for number in range(processes)],
        "all on the first": [everybody, *nobody],
        "all on the last": [*nobody, everybody],
        "one fewer": [*nobody, everybody[:-1]],
        "nobody": [[], *nobody],
    }


def told(ask: Callable[[], None]) -> str:
    try:
        ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
