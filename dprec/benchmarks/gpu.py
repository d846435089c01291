"""What a GPU does with private steps: whether they are right, what they cost beside plain ones, and what fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from statistics import median
from typing import Any

import torch
from rich.console import Group

from dprec.benchmarks import timing
from dprec.benchmarks.table_steps import MLPERF, NETWORKS, LookUps, Step
from dprec.benchmarks.timing import Row
from dprec.data import SequenceBatch
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models import DPFormer
from dprec.models.learning.learner import mean_loss
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec_kernels import paths

Work = Callable[[], object]
ITEMS, LENGTH, DIM = 3417, 50, 64  # DPFormer on MovieLens
USERS, STEPS = 2048, 10
GIGABYTES, RECORDS = 4.0, (2048, 16384)  # of DLRM's tables together, and of its steps
WRONG = 1e-4  # of the largest number
MOST_USERS = 1 << 15  # at once: torch's attention takes 65,535 on a GPU
COLUMNS = {
    "sums": {"name": "clipped sums", "millionths": "error, millionths"},
    "step": {
        "name": "step", "users": "users", "private_ms": "private ms", "plain_ms": "plain ms", "ratio": "ratio",
        "private_mb": "private MB", "plain_mb": "plain MB",
    },
    "largest batch": {"name": "largest batch", "users": "users"},
    "tables": {"name": "on tables", "rows": "rows", "records": "records", "ms": "ms", "ratio": "of SGD"},
}  # fmt: skip


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield a row for the sums, one for the step, one for the largest batch, and one for each system on tables."""
    device = _gpu()
    named = getattr(torch.get_device_module(device), "get_device_name", lambda: device)()
    where = {"card": named, "torch": torch.__version__, "triton": version("triton")}
    for what in (_sums, _step, _largest, _tables):
        for row in what(device, quick, say):
            yield row | where


def table(rows: Sequence[Row]) -> Group:
    shown = {what: [row for row in rows if row["what"] == what] for what in COLUMNS}
    return Group(*(timing.table(found, COLUMNS[what]) for what, found in shown.items() if found))


def _gpu() -> str:
    """Return the type of the device that kernels run on here."""
    if not paths.TRITON:
        raise UserError("the kernels of a GPU need triton: pip install triton")
    here = torch.accelerator.current_accelerator()
    if here is None or here.type not in paths.GPUS or not torch.accelerator.is_available():
        raise UserError("there is no GPU on this machine: measure where there is one")
    return here.type


def _sums(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """How far clipped sums without noise are from those of the CPU, relative to the largest number."""
    say("clipped sums")
    exact, found = (_summed(place, 4 if quick else 64, quick) for place in ("cpu", device))
    error = float((found - exact).abs().max() / exact.abs().max())
    yield {"what": "sums", "name": "DPFormer", "millionths": 1e6 * error}
    if error >= WRONG:
        raise UserError(f"not as on the CPU: clipped sums are off by {error:.1e} of the largest number")


def _summed(device: str, users: int, quick: bool) -> torch.Tensor:
    step, model = _work(device, users, quick, noise=0.0)
    step()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([gradient.cpu().double().flatten() for gradient in gradients])


def _step(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """The time and peak memory of a step of DPFormer, with privacy and without."""
    say("a step of DPFormer")
    users, steps = (4, 1) if quick else (USERS, STEPS)
    found: Row = {"what": "step", "name": "DPFormer", "users": users}
    module = torch.get_device_module(device)
    for name in ("private", "plain"):
        work, _ = _work(device, users, quick, private=name == "private")
        work()
        module.reset_peak_memory_stats()
        found[f"{name}_ms"] = _milliseconds(device, work, steps)
        found[f"{name}_mb"] = module.max_memory_allocated() / 1e6
    yield found | {"ratio": found["private_ms"] / found["plain_ms"]}


def _largest(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Double the users of a private step until they do not fit, or attention takes no more; quick: at most twice."""
    users, most = (2, 4) if quick else (USERS, MOST_USERS)
    largest = 0
    while users <= most:
        say(f"a step of {users:,} users")
        try:
            _work(device, users, quick)[0]()
        except torch.OutOfMemoryError:
            break
        largest, users = users, 2 * users
    yield {"what": "largest batch", "name": "DPFormer", "users": largest}


def _tables(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """The time of a step of DLRM, in the middle of a long run, of each system and size of batch."""
    shape = NETWORKS[MLPERF]
    ids = 40 if quick else shape.ids(GIGABYTES)
    for records in (4,) if quick else RECORDS:
        torch.manual_seed(0)
        model = shape.model(ids, quick).to(device)
        look_ups, plain = LookUps(records, shape.tables, ids - 1, device=device), None
        for system in ("SGD", "EANA (not private)", "LazyDP", "DP-SGD, fused"):
            say(f"{system} on tables, {records:,} records")
            step = Step(system, model, look_ups)
            for _ in range(1 if quick else 3):  # kernels are compiled
                step.fetch()
                step()
            taken = _milliseconds(device, step, 1 if quick else STEPS, step.fetch)
            plain = plain or taken
            size = {"rows": shape.tables * ids, "records": records}
            yield {"what": "tables", "name": system, **size, "ms": taken, "ratio": taken / plain}


def _milliseconds(device: str, work: Work, times: int, before: Work = lambda: None) -> float:
    """Return the median time of `work`, the GPU's included; `before` runs ahead of each and is not timed."""
    synchronize, taken = torch.get_device_module(device).synchronize, []
    for _ in range(times):
        before()
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken) * 1e3


def _work(device: str, users: int, quick: bool, private: bool = True, noise: float = 1.0) -> tuple[Work, Any]:
    """Return what takes the gradient of a DPFormer on so many users, and the model."""
    items, length, dim = (30, 6, 16) if quick else (ITEMS, LENGTH, DIM)
    torch.manual_seed(0)
    model = DPFormer(items, dim=dim, heads=1, blocks=1, max_length=length, dropout=0.0, frequencies="uniform")
    events = torch.randint(1, items, (users, length + 1))
    batch, parameters = SequenceBatch(events[:, :-1], events[:, 1:]).to(device), trained_parameters(model.to(device))
    if private:
        gradient = PrivateGradient(Clipping(), StepNoise(GaussianNoise(), noise, users), padding_rows(model))
        return lambda: gradient(parameters, model.losses, [batch]), model

    def plain() -> None:
        model.zero_grad()
        mean_loss(parameters, model.losses, [batch]).backward()

    return plain, model
