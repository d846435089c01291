"""Processes that share a step's users: the same sums, no noise of their own, and nothing lost when one ends."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dprec import Privacy
from dprec.data import SequenceBatch, Sequences
from dprec.gradients.clipping import Clipping
from dprec.models import GRU, DPFormer, DualEncoder, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy import cores as package
from dprec.privacy.cores import FORKS, AllCores, OneCore, cores_for, dealing, processes
from dprec.privacy.cores.anywhere import computes_anywhere
from dprec.privacy.cores.dealing import dealt
from dprec.privacy.step import PrivateGradient
from dprec.training.script import private
from dprec.verify.self_check import BrokenPromise

ITEMS, LENGTH = 30, 12
MODELS = {"transformer": Transformer, "dpformer": DPFormer, "gru": GRU, "dual": DualEncoder}


# Where torch has a device, such as that of tests/device, nothing is forked.
OUTSIDE = torch.accelerator.is_available()
forks = pytest.mark.skipif(OUTSIDE, reason="runs in a process of its own")


@pytest.mark.skipif(not OUTSIDE, reason="runs where others have registered a device")
def test_all_of_this_file_in_a_process_of_its_own() -> None:
    assert type(cores_for(model_of())) is OneCore
    done = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-p", "no:cacheprovider"],
        cwd=Path(__file__).parent.parent.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(package, "cores", lambda: 3)
    monkeypatch.setattr(package, "SMALLEST_STEP", 0)
    for name in ("OF_A_BATCH", "OF_THE_REST"):  # so that small batches are dealt, too
        monkeypatch.setattr(dealing, name, 0)
    yield
    left = active_children()
    for process in left:  # so that one failing test does not fail the next
        process.kill()
        process.join()
    assert not left


def model_of(kind: str = "transformer", **options: Any) -> Any:
    torch.manual_seed(0)
    more = {} if kind == "gru" else {"max_length": LENGTH}
    model: Any = MODELS[kind](items=ITEMS, dim=8, **more, **({"dropout": 0.0} | options))
    if kind == "dpformer":
        model.network.set_error(0.1)  # as a run does, so that Re-Attention is on
    return model


def batch_of(seed: int = 0, sizes: Sequence[int] = (7, 4, 1)) -> list[SequenceBatch]:
    draw, parts = torch.Generator().manual_seed(seed), []
    for number, users in enumerate(sizes):
        length = LENGTH // (1 + number)
        rows = torch.randint(1, ITEMS, (users, length + 1), generator=draw)
        lengths = torch.randint(1, length + 1, (users, 1), generator=draw)
        inside = torch.arange(length) < lengths
        parts.append(SequenceBatch(rows[:, :-1] * inside, rows[:, 1:] * inside))
    return parts


def gradient_by(model: Any, cores: OneCore, sigma: float = 0.0) -> PrivateGradient:
    return PrivateGradient(Clipping("flat", 0.1), StepNoise(GaussianNoise(5), sigma, 10.0), cores=cores)


def steps_of(model: Any, cores: OneCore, steps: int = 4, sigma: float = 0.0) -> list[Tensor]:
    """Return where some steps lead."""
    gradient, parameters = gradient_by(model, cores, sigma), dict(model.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    for step in range(steps):
        gradient(parameters, model.losses, batch_of(step))
        optimizer.step()
    return [p.detach().clone() for p in parameters.values()]


def all_cores_of(model: Any) -> AllCores:
    cores = cores_for(model)
    assert isinstance(cores, AllCores)
    return cores


def close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


@forks
@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("kind", MODELS)
def test_steps_are_those_of_one_process(kind: str, sigma: float) -> None:
    alone, model = model_of(kind), model_of(kind)
    cores = all_cores_of(model)
    expected = steps_of(alone, OneCore(), sigma=sigma)
    assert close(expected, steps_of(model, cores, sigma=sigma))
    assert len(active_children()) == 2
    assert not close(expected, list(model_of(kind).parameters()))
    assert all(view.any() for other in cores._others for view in other._sums.views[:1])  # each has added something up
    cores.close()


@forks
def test_a_run_is_repeatable() -> None:
    ended = []
    for _ in range(2):
        model = model_of()
        cores = all_cores_of(model)
        ended.append(steps_of(model, cores, sigma=1.0))
        cores.close()
    assert all(map(torch.equal, *ended))


@forks
def test_the_loss_that_is_told_is_that_of_all_users() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    expected = torch.cat([model.losses(part) for part in batch_of()]).mean().item()
    for _ in range(2):
        assert gradient(parameters, model.losses, batch_of()) == pytest.approx(expected, rel=1e-5)
    cores.close()


@forks
def test_every_user_is_dealt_once_and_shares_are_alike() -> None:
    for sizes_of_parts in ([7, 4, 1], [1], [2], [40, 30, 20, 10, 5], [100], []):
        parts = batch_of(sizes=sizes_of_parts)
        for several in (1, 2, 3, 8):
            shares = dealt(parts, several)
            assert len(shares) == several
            rows = sorted(tuple(row[row != 0].tolist()) for share in shares for part in share for row in part.history)
            assert rows == sorted(tuple(row[row != 0].tolist()) for part in parts for row in part.history)
            assert all(len(part) for share in shares for part in share)
    many = batch_of(sizes=[4000, 3000, 2000])
    work = [sum(int((part.history != 0).sum()) for part in share) for share in dealt(many, 3)]
    assert max(work) < 1.2 * min(work)


@forks
def test_a_batch_that_draws_nobody_is_a_step() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    for batch in (batch_of(), [], batch_of(sizes=[1]), []):
        gradient(parameters, model.losses, batch)
    assert all(float(p.grad.abs().sum()) == 0 for p in parameters.values() if p.grad is not None)
    cores.close()


@forks
def test_losses_that_draw_are_one_process_s() -> None:
    model = model_of(dropout=0.5)
    cores = all_cores_of(model)
    steps_of(model, cores)
    assert not active_children()


class Mine(Transformer):
    """A model of one's own: nobody knows what its losses read."""


class Promised(Transformer):
    """One that says what its losses read."""

    rows_alone = True

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        return super().encode(history, context) * 2


@forks
def test_a_model_of_one_s_own_that_promises_is_dealt() -> None:
    torch.manual_seed(0)
    alone = Promised(items=ITEMS, max_length=LENGTH, dim=8, dropout=0.0)
    model = copy.deepcopy(alone)
    cores = all_cores_of(model)
    assert close(steps_of(alone, OneCore()), steps_of(model, cores))
    assert len(active_children()) == 2
    cores.close()


def patched() -> Any:
    model = model_of()
    model.encode = lambda history: model.embedding(history)
    return model


@forks
@pytest.mark.parametrize(
    "make",
    [
        lambda: Mine(items=ITEMS, max_length=LENGTH, dim=8),
        lambda: model_of(negatives=3),
        lambda: nn.Sequential(model_of()),
        patched,
    ],
    ids=["own class", "shared negatives", "within another", "patched"],
)
def test_other_models_are_one_process_s(make: Any) -> None:
    model = make()
    assert not computes_anywhere(model, getattr(model, "losses", model.forward))


@forks
def test_other_losses_are_one_process_s() -> None:
    model = model_of()
    assert computes_anywhere(model, model.losses)
    assert not computes_anywhere(model, lambda batch: model.losses(batch))
    assert not computes_anywhere(model, model_of().losses)


def gradients(cores: OneCore, model: Any, change: Any, steps: int = 3) -> list[Tensor]:
    """Return the gradients of all steps, before each of which something changes; it may give other losses."""
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    found = []
    for step in range(steps):
        losses = change(model, step) or model.losses
        gradient(parameters, losses, batch_of())
        found += [p.grad.clone() for p in parameters.values()]
    return found


def other_number(model: Any, step: int) -> None:
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 10.0**-step


def other_weights(model: Any, step: int) -> None:
    with torch.no_grad():
        model.embedding.weight[3] += step


def other_buffer(model: Any, step: int) -> None:
    model.item_error.copy_(0.1 * step * torch.linspace(0, 3, ITEMS))


def other_module(model: Any, step: int) -> None:
    for block in model.network.blocks:
        block.last = nn.ReLU() if step else nn.GELU()
    model.network.last_norm = nn.LayerNorm(8, elementwise_affine=False) if step else nn.Identity()


def other_function(model: Any, step: int) -> None:
    if step:
        own = type(model).encode
        model.encode = lambda history, context=None: own(model, history, context) * 3


def other_hook(model: Any, step: int) -> None:
    if step:
        model.network.register_forward_hook(lambda module, given, made: made * 2)


def other_hook_backward(model: Any, step: int) -> None:
    if step:
        model.network.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * torch.arange(8),))


def other_class(model: Any, step: int) -> None:
    if step:
        model.network.last_norm.__class__ = Doubling


class Doubling(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def other_losses(model: Any, step: int) -> Any:
    return (lambda batch: model.encode(batch.history).square().mean((1, 2))) if step else None


@forks
@pytest.mark.parametrize(
    "change",
    [
        *(other_number, other_weights, other_buffer, other_module, other_function),
        *(other_hook, other_hook_backward, other_class, other_losses),
    ],
)
def test_what_changes_between_steps_counts_for_all_users(change: Any) -> None:
    kind = "dpformer" if change is other_buffer else "transformer"
    model = model_of(kind)
    cores = all_cores_of(model)
    found = gradients(cores, model, change)
    cores.close()
    expected = gradients(OneCore(), model_of(kind), change)
    assert close(expected, found)
    third = len(expected) // 3
    assert not close(expected[:third], expected[third : 2 * third])  # it matters


@forks
def test_a_class_that_is_patched_counts_for_all_users() -> None:
    def patched_at_the_second(cores: OneCore, model: Any) -> list[Tensor]:
        own = nn.LayerNorm.forward
        with pytest.MonkeyPatch.context() as patches:

            def patch(_: Any, step: int) -> None:
                if step == 1:
                    patches.setattr(nn.LayerNorm, "forward", lambda self, x: own(self, x) * 2)

            return gradients(cores, model, patch)

    model = model_of()
    cores = all_cores_of(model)
    found = patched_at_the_second(cores, model)
    cores.close()
    assert close(patched_at_the_second(OneCore(), model_of()), found)
    assert not close(found, gradients(OneCore(), model_of(), lambda *_: None))


@forks
def test_under_a_mode_of_torch_s_one_process_takes_all_users() -> None:
    with FlopCounterMode(display=False):
        model = model_of()
        steps_of(model, all_cores_of(model))
        assert not active_children()


@forks
def test_weights_and_buffers_reach_processes_that_live_on() -> None:
    for change in (other_weights, other_buffer):
        model = model_of("dpformer")
        cores = all_cores_of(model)
        gradients(cores, model, lambda *_: None, steps=1)
        before = {process.pid for process in active_children()}
        found = gradients(cores, model, change)
        assert {process.pid for process in active_children()} == before
        assert close(gradients(OneCore(), model_of("dpformer"), change), found)
        cores.close()


@forks
def test_a_model_that_changes_all_the_time_is_one_process_s() -> None:
    model = model_of()
    cores = all_cores_of(model)
    with pytest.warns(UserWarning, match="attributes changed"):
        gradients(cores, model, lambda model, step: setattr(model, "count", step), steps=FORKS + 1)
    assert not active_children()


@forks
@pytest.mark.parametrize("error", [BlockingIOError("no more"), AssertionError("daemonic")])
def test_a_run_that_cannot_fork_is_one_process_s(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(processes.Other):
        made = 0

        def __init__(self, *arguments: Any) -> None:
            Refused.made += 1
            if Refused.made == 2:
                raise error
            super().__init__(*arguments)

    monkeypatch.setattr(package, "Other", Refused)
    model = model_of()
    with pytest.warns(UserWarning, match="one process"):
        found = steps_of(model, all_cores_of(model))
    assert Refused.made == 2
    assert not active_children()
    assert close(steps_of(model_of(), OneCore()), found)


@forks
def test_others_hear_no_signal_of_the_first_one_s(tmp_path: Path) -> None:
    told = tmp_path / "told"
    own = signal.signal(signal.SIGUSR1, lambda *_: told.write_text(str(os.getpid())))
    try:
        model = model_of()
        cores = all_cores_of(model)
        steps_of(model, cores)
        others = active_children()
        for process in others:
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
                os.kill(process.pid or 0, number)
        steps_of(model, cores)
        assert active_children() == others
        assert not told.exists()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert told.read_text() == str(os.getpid())
    finally:
        signal.signal(signal.SIGUSR1, own)
        cores.close()


@forks
def test_a_batch_that_cannot_be_sent_is_one_process_s() -> None:
    model, alone = model_of(), model_of()
    cores = all_cores_of(model)
    for own, gradient in ((model, gradient_by(model, cores)), (alone, gradient_by(alone, OneCore()))):
        for _ in range(2):
            gradient(dict(own.named_parameters()), own.losses, [Unsendable(part) for part in batch_of()])
    assert close([p.grad for p in alone.parameters()], [p.grad for p in model.parameters()])
    cores.close()


class Unsendable(SequenceBatch):
    def __init__(self, batch: SequenceBatch) -> None:
        super().__init__(batch.history, batch.targets)

    def select(self, users: Sequence[int]) -> Unsendable:
        return Unsendable(super().select(users))

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@forks
def test_there_are_no_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)))
    for quota, expected in (("max 100000", 8), ("250000 100000", 3), ("", 8)):
        file = tmp_path / "cpu.max"
        file.write_text(quota)
        monkeypatch.setattr(package, "Path", lambda _, file=file: file)
        assert package.cores() == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert package.cores() == 1


@forks
def test_a_process_that_is_killed_costs_nothing() -> None:
    model, alone = model_of(), model_of()
    cores = all_cores_of(model)
    gradients = [gradient_by(model, cores), gradient_by(alone, OneCore())]
    for step in range(5):
        for gradient, own in zip(gradients, (model, alone), strict=True):
            gradient(dict(own.named_parameters()), own.losses, batch_of(step))
        assert close([p.grad for p in alone.parameters()], [p.grad for p in model.parameters()])
        if step == 2:
            killed = active_children()
            killed[0].kill()
            killed[0].join()
    assert not {process.pid for process in active_children()} & {process.pid for process in killed}
    cores.close()


class Overflowing(Transformer):
    """The gradient of whoever has met item 7 is not finite."""

    rows_alone = True

    def losses(self, batch: SequenceBatch) -> Tensor:
        return super().losses(batch) * torch.where((batch.history == 7).any(1), torch.inf, 1.0)


@forks
def test_a_user_whose_gradient_is_not_finite_counts_as_in_one_process() -> None:
    def nothing(*_: Any) -> None:
        return None

    torch.manual_seed(0)
    alone = Overflowing(items=ITEMS, max_length=LENGTH, dim=8, dropout=0.0)
    model = copy.deepcopy(alone)
    cores = all_cores_of(model)
    found = gradients(cores, model, nothing)
    assert close(gradients(OneCore(), alone, nothing), found)
    assert any(gradient.any() for gradient in found)
    cores.close()


@forks
def test_an_error_is_that_of_one_process_and_leaves_nobody() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    for _ in range(2):
        gradient(parameters, model.losses, batch_of())
    assert active_children()
    broken = batch_of()
    broken[0].history[:] = ITEMS + 5
    with pytest.raises(IndexError):
        gradient(parameters, model.losses, broken)
    assert not active_children()
    gradient(parameters, model.losses, batch_of())  # goes on
    cores.close()


@forks
def test_a_copy_of_a_run_s_model_has_no_processes() -> None:
    cores = all_cores_of(model_of())
    assert type(copy.deepcopy(cores)) is OneCore
    assert type(pickle.loads(pickle.dumps(cores))) is OneCore


def data_of(**options: Any) -> Sequences:
    return Sequences(
        "synthetic", synthetic_users=60, synthetic_items=20, min_events=0, max_length=8, batch_size=20, **options
    )


def script(verify: float = 0.0, steps: int = 6) -> Any:
    data = data_of(sampling_seed=1)
    data.setup()
    torch.manual_seed(0)
    model = Transformer(**data.sizes, dim=8, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return private(
        model, optimizer, data.train_dataloader(), noise_multiplier=1.0, steps=steps, noise_seed=2, verify=verify
    )


def finish(training: Any) -> None:
    for batch in training:
        training.step(batch)


@forks
def test_a_script_is_the_same_run_and_its_ledger_has_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training, seen = script(), 0
    for batch in training:
        training.step(batch)
        seen = max(seen, len(active_children()))
    assert seen == 2
    assert training.steps == 6
    monkeypatch.setattr(package, "cores", lambda: 1)
    alone = script()
    finish(alone)
    assert alone.spent == training.spent
    assert alone.ledger.events == training.ledger.events
    assert close(list(alone.trained.module.parameters()), list(training.trained.module.parameters()))


@forks
def test_a_run_that_checks_itself_finds_nothing_in_what_others_add() -> None:
    training = script(verify=1.0)
    finish(training)
    assert training.steps == 6


@forks
def test_a_run_that_checks_itself_finds_a_share_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    training = script(verify=1.0, steps=40)
    own = processes._added

    def tripled(share: Any, sums: Any, clip: Any) -> Any:
        found = own(share, sums, clip)
        torch._foreach_mul_(sums, 3.0)
        return found

    monkeypatch.setattr(processes, "_added", tripled)
    with pytest.raises(BrokenPromise):
        finish(training)
    training._steps.end()


@forks
def test_lightning_s_loop_has_them_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(sorted(process.pid or 0 for process in active_children()))

    def fitted() -> Any:
        data = data_of(sampling_seed=1)
        data.setup()
        torch.manual_seed(0)
        model = DPFormer(**data.sizes, dim=8, frequencies="uniform", dropout=0.0)
        trainer = pl.Trainer(
            max_steps=12,  # and a validation after every third
            accelerator="cpu",
            callbacks=[Privacy(noise_multiplier=1.0, noise_seed=3), Watch()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, data)
        return list(model.parameters())

    several = fitted()
    assert len(seen[0]) == 2
    assert seen == [seen[0]] * 11 + [[]]
    assert not active_children()
    monkeypatch.setattr(package, "cores", lambda: 1)
    assert close(fitted(), several)


@forks
def test_others_are_gone_with_a_run_that_is_thrown_away() -> None:
    training = script()
    for batch in training:
        training.step(batch)
        if training.steps == 3:
            break
    assert len(active_children()) == 2
    del training, batch
    gc.collect()
    assert not active_children()


@forks
def test_a_process_that_is_killed_leaves_no_others() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            model = model_of()
            cores = all_cores_of(model)
            steps_of(model, cores)
            os.write(write, json.dumps([process.pid for process in active_children()]).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as told:
        others = json.loads(told.read())
    assert len(others) == 2
    until = time.monotonic() + 10
    while any(map(runs, others)):
        assert time.monotonic() < until
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False
