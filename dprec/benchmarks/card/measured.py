"""What a card does with the kernels: whether they are right, what a private step costs there, what fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.table_work.networks import MLPERF, NETWORKS
from dprec.benchmarks.table_work.steady import LookUps
from dprec.benchmarks.table_work.steps import Step
from dprec.data.draws.batch import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models import DLRM, DPFormer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec_kernels import joint, sample_norms
from dprec_kernels.catalogue_softmax import catalogue_softmax, for_users, reference, squared_norms
from dprec_kernels.dense_noise import dense_noise
from dprec_kernels.lazy_noise import lazy_noise
from dprec_kernels.ordering import ordered
from dprec_kernels.row_noise import RowNoise, row_noise
from dprec_kernels.row_sums import Part, row_sums
from dprec_kernels.sparse_update import SGD, step_rows, summed

ITEMS, LENGTH, DIM = 3417, 50, 64  # DPFormer on MovieLens
USERS, STEPS = 2048, 10
GIGABYTES, RECORDS = 4.0, (2048, 16384)  # of DLRM's tables together, and of its steps
MOST_USERS = 1 << 15  # at once: torch's attention takes 65,535 on a card
SOURCE = RowNoise(seed=(1 << 100) + 7, stream=1, step=3)


def rows(device: str, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each kernel, one for the step, one for the largest batch, and one for each system on tables."""
    found = [*_errors(device, quick, say), _step(device, quick, say), _largest(device, quick, say)]
    return [row | _where(device) for row in (*found, *_tables(device, quick, say))]


def _where(device: str) -> Row:
    """Return what the card is called, and what runs on it."""
    module = torch.get_device_module(device)
    card = module.get_device_name() if hasattr(module, "get_device_name") else device
    return {"card": card, "torch": torch.__version__, "triton": version("triton")}


def _errors(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield how far each kernel is from the same operation on the CPU, relative to the largest number."""
    for name, work in _operations(8 if quick else 512).items():
        say(name)
        exact, found = work("cpu").double(), work(device).cpu().double()
        error = float((found - exact).abs().max() / exact.abs().max().clamp(min=1e-30))
        yield {"what": "kernel", "name": name, "millionths": error * 1e6, "right": error < 1e-4}


def _operations(users: int) -> dict[str, Callable[[str], Tensor]]:
    draw = torch.Generator().manual_seed(1)
    items, length, dim = 10 * users, 12, 16
    hidden, table = torch.randn(users, length, dim, generator=draw), torch.randn(items, dim, generator=draw)
    target = torch.randint(1, items, (users, length), generator=draw)
    weight, few = torch.rand(users, length, generator=draw), torch.arange(0, items, 3)

    def forward(device: str) -> tuple[Tensor, ...]:
        given = hidden.to(device), table.to(device), target.to(device)
        return (*given, for_users(*given)[1].detach())

    def loss(device: str) -> Tensor:
        return for_users(hidden.to(device), table.to(device), target.to(device))[0]

    def table_gradient(device: str) -> Tensor:
        own, at = table.to(device, copy=True).requires_grad_(), hidden.to(device)
        (catalogue_softmax(at, own, target.to(device)) * weight.to(device)).sum().backward()
        assert own.grad is not None
        return own.grad

    def norms(device: str) -> Tensor:
        if device == "cpu":
            own = reference.user_gradients(hidden.double(), table.double(), target, weight.double())
            return own.flatten(1).square().sum(1)
        at, own, wanted, log_total = forward(device)
        none = wanted[:, :0]
        return squared_norms(at, own, wanted, log_total, weight.to(device), none, at[:, :0])

    def of_several(device: str) -> tuple[Tensor, Tensor]:
        lines = joint.Products(hidden.to(device), hidden.to(device))
        return joint.measured([joint.Measure([lines])], lines.left[:, 0, 0], 1e-6)

    def products(device: str) -> Tensor:
        lines = joint.Products(hidden.to(device), hidden.to(device))
        return joint.sums([lines], weight[:, 0].to(device))[0]

    def added(device: str) -> Tensor:
        read, order = ordered(target.to(device).flatten())
        starts, stops = (torch.searchsorted(read, few.to(device), right=right) for right in (False, True))
        part = Part([hidden.to(device)], weight[:, 0].to(device))
        return row_sums([part], order, starts, stops, [len(few)], torch.float32)

    def noised(device: str) -> Tensor:
        own = torch.zeros(items, dim, device=device)
        dense_noise(own, 2.0, SOURCE)
        return own

    def stepped(device: str) -> Tensor:
        own = table.to(device, copy=True)
        rows, gradient = summed(target.to(device), hidden.to(device))
        step_rows(own, rows, gradient, SGD(0.1), 2.0, SOURCE)
        return own

    def paid(device: str) -> Tensor:
        own, std = table.to(device, copy=True), torch.ones(len(few)).to(device)
        lazy_noise(own, few.to(device), std, SOURCE)
        return own

    return {
        "catalogue_softmax_fwd_kernel": loss,
        "catalogue_softmax_bwd_table_kernel": table_gradient,
        "catalogue_softmax_user_norms_kernel": norms,
        "joint_tiles_fwd_kernel": lambda device: sample_norms.linear(hidden.to(device), hidden.to(device)),
        "joint_norms_fwd_kernel": lambda device: torch.cat(of_several(device)[:2]),
        "joint_sums_fwd_kernel": products,
        "user_scales_fwd_kernel": lambda device: torch.stack(
            joint.scaled(*of_several(device), 1, target[:, 0].float().to(device), Clipping().law)[:2]
        ),
        "rows_norms_fwd_kernel": lambda device: sample_norms.rows(target.to(device), hidden.to(device)),
        "row_sums_fwd_kernel": added,
        "row_noise_fwd_kernel": lambda device: row_noise(7, 0, few.to(device), 5, dim),
        "dense_noise_fwd_kernel": noised,
        "lazy_noise_fwd_kernel": paid,
        "sparse_update_fwd_kernel": stepped,
    }


def _step(device: str, quick: bool, say: Callable[[str], None]) -> Row:
    """Return the time and peak memory of a step of DPFormer, with privacy and without."""
    say("a step of DPFormer")
    users, steps = (4, 1) if quick else (USERS, STEPS)
    found: Row = {"what": "step", "name": "DPFormer", "users": users}
    for name, make in (("private", _private), ("plain", _plain)):
        module = torch.get_device_module(device)
        work = make(device, users, quick)
        work()
        module.reset_peak_memory_stats()
        found[f"{name}_ms"] = _milliseconds(device, work, steps)
        found[f"{name}_mb"] = module.max_memory_allocated() / 1e6
    return found | {"ratio": found["private_ms"] / found["plain_ms"]}


def _milliseconds(
    device: str, work: Callable[[], object], times: int, before: Callable[[], object] = lambda: None
) -> float:
    """Return the median time of `work`, card included; `before` runs ahead of each and is not timed."""
    synchronize, taken = torch.get_device_module(device).synchronize, []
    for _ in range(times):
        before()
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken) * 1e3


def _tables(device: str, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the time of a step of DLRM, in the middle of a long run, of each system and size of batch."""
    shape = NETWORKS[MLPERF]
    tables, ids = (3, 40) if quick else (shape.tables, shape.ids(GIGABYTES))
    bottom, top = ([8], [8]) if quick else (shape.bottom, shape.top)
    for records in (4,) if quick else RECORDS:
        torch.manual_seed(0)
        model = DLRM(13, [ids - 1] * tables, shape.dim, bottom, top, optimizer="sgd", weight_decay=0.0).to(device)
        look_ups, plain = LookUps(records, tables, ids - 1, device=device), None
        for system in ("SGD", "EANA (not private)", "LazyDP", "DP-SGD, fused"):
            say(f"{system} on tables, {records:,} records")
            step = Step(system, model, look_ups)
            for _ in range(1 if quick else 3):  # kernels are compiled
                step.fetch()
                step()
            taken = _milliseconds(device, step, 1 if quick else STEPS, step.fetch)
            plain = plain or taken
            size = {"rows": tables * ids, "records": records}
            yield {"what": "tables", "name": system, **size, "ms": taken, "ratio": taken / plain}


def _largest(device: str, quick: bool, say: Callable[[str], None]) -> Row:
    """Double the users of a private step until they do not fit, or attention takes no more; quick: at most twice."""
    users, most = (2, 4) if quick else (USERS, MOST_USERS)
    largest = 0
    while users <= most:
        say(f"a step of {users:,} users")
        try:
            _private(device, users, quick)()
        except torch.OutOfMemoryError:
            break
        largest, users = users, 2 * users
    return {"what": "largest batch", "name": "DPFormer", "users": largest}


def _model(device: str, users: int, quick: bool) -> tuple[Any, SequenceBatch]:
    items, length, dim = (30, 6, 16) if quick else (ITEMS, LENGTH, DIM)
    torch.manual_seed(0)
    model = DPFormer(items, dim=dim, heads=1, blocks=1, max_length=length, frequencies="uniform")
    events = torch.randint(1, items, (users, length + 1))
    return model.to(device), SequenceBatch(events[:, :-1], events[:, 1:]).to(device)


def _private(device: str, users: int, quick: bool) -> Callable[[], object]:
    model, batch = _model(device, users, quick)
    gradient = PrivateGradient(Clipping(), StepNoise(GaussianNoise(), 1.0, users), padding_rows(model))
    return lambda: gradient(trained_parameters(model), model.losses, [batch])


def _plain(device: str, users: int, quick: bool) -> Callable[[], object]:
    model, batch = _model(device, users, quick)

    def step() -> None:
        model.zero_grad()
        model.losses(batch).mean().backward()

    return step
