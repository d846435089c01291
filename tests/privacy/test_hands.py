"""Processes that share a step's users: the same sums, no noise of their own, and nothing lost when one ends."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator, Sequence
from multiprocessing import active_children
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from dprec import Privacy
from dprec.data import SequenceBatch, Sequences
from dprec.gradients.clipping import Clipping
from dprec.models import GRU, DPFormer, DualEncoder, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy import hands as module_of_hands
from dprec.privacy.hands import FORKS, Hands, Several, computes_anywhere, dealt, hands_of
from dprec.privacy.step import PrivateGradient
from dprec.training.script import private
from dprec.verify.self_check import BrokenPromise

ITEMS, LENGTH = 30, 12
MODELS = {"transformer": Transformer, "dpformer": DPFormer, "gru": GRU, "dual": DualEncoder}


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module_of_hands, "_cores", lambda: 3)
    for name in ("LEAST", "PASS", "REST"):  # so that small batches are dealt, too
        monkeypatch.setattr(module_of_hands, name, 0)
    yield
    left = active_children()
    for process in left:  # so that one failing test does not fail the next
        process.kill()
        process.join()
    assert not left


def model_of(kind: str = "transformer", **options: Any) -> Any:
    torch.manual_seed(0)
    more = {} if kind == "gru" else {"max_length": LENGTH}
    return MODELS[kind](items=ITEMS, dim=8, **more, **({"dropout": 0.0} | options))


def batch_of(seed: int = 0, sizes: Sequence[int] = (7, 4, 1)) -> list[SequenceBatch]:
    draw, parts = torch.Generator().manual_seed(seed), []
    for number, users in enumerate(sizes):
        length = LENGTH // (1 + number)
        rows = torch.randint(1, ITEMS, (users, length + 1), generator=draw)
        lengths = torch.randint(1, length + 1, (users, 1), generator=draw)
        inside = torch.arange(length) < lengths
        parts.append(SequenceBatch(rows[:, :-1] * inside, rows[:, 1:] * inside))
    return parts


def gradient_by(model: Any, hands: Hands, sigma: float = 0.0) -> PrivateGradient:
    return PrivateGradient(Clipping("flat", 0.1), StepNoise(GaussianNoise(5), sigma, 10.0), hands=hands)


def steps_of(model: Any, hands: Hands, steps: int = 4, sigma: float = 0.0) -> list[Tensor]:
    """Return where some steps lead."""
    gradient, parameters = gradient_by(model, hands, sigma), dict(model.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    for step in range(steps):
        gradient(parameters, model.losses, batch_of(step))
        optimizer.step()
    return [p.detach().clone() for p in parameters.values()]


def several_of(model: Any) -> Several:
    hands = hands_of(model, model.losses)
    assert isinstance(hands, Several)
    return hands


def close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


def sizes(share: Sequence[Any]) -> list[int]:
    return [len(part) for part in share]


@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("kind", MODELS)
def test_steps_are_those_of_one_process(kind: str, sigma: float) -> None:
    alone, model = model_of(kind), model_of(kind)
    hands = several_of(model)
    expected = steps_of(alone, Hands(), sigma=sigma)
    assert close(expected, steps_of(model, hands, sigma=sigma))
    assert len(active_children()) == 2
    assert not close(expected, list(model_of(kind).parameters()))
    assert all(view.any() for other in hands._others for view in other._sums.views[:1])  # each has added something up
    hands.close()


def test_a_run_is_repeatable() -> None:
    ended = []
    for _ in range(2):
        model = model_of()
        hands = several_of(model)
        ended.append(steps_of(model, hands, sigma=1.0))
        hands.close()
    assert all(map(torch.equal, *ended))


def test_the_loss_that_is_told_is_that_of_all_users() -> None:
    model = model_of()
    hands = several_of(model)
    gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
    expected = torch.cat([model.losses(part) for part in batch_of()]).mean().item()
    for _ in range(2):  # one process, then three
        assert gradient(parameters, model.losses, batch_of()) == pytest.approx(expected, rel=1e-5)
    hands.close()


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


def test_a_batch_that_draws_nobody_is_a_step() -> None:
    model = model_of()
    hands = several_of(model)
    gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
    for batch in (batch_of(), [], batch_of(sizes=[1]), []):
        gradient(parameters, model.losses, batch)
    assert all(float(p.grad.abs().sum()) == 0 for p in parameters.values() if p.grad is not None)
    hands.close()


def test_losses_that_draw_are_one_process_s() -> None:
    model = model_of(dropout=0.5)
    hands = several_of(model)
    steps_of(model, hands)
    assert not active_children()


class Mine(Transformer):
    """A model of one's own: nobody knows what its losses read."""


class Promised(Transformer):
    """One that says what its losses read."""

    rows_alone = True

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        return super().encode(history, context) * 2


def test_a_model_of_one_s_own_that_promises_is_dealt() -> None:
    torch.manual_seed(0)
    alone = Promised(items=ITEMS, max_length=LENGTH, dim=8, dropout=0.0)
    model = copy.deepcopy(alone)
    hands = several_of(model)
    assert close(steps_of(alone, Hands()), steps_of(model, hands))
    assert len(active_children()) == 2
    hands.close()


def hooked() -> Any:
    model = model_of()
    model.network.register_forward_hook(lambda *_: None)
    return model


def patched() -> Any:
    model = model_of()
    model.encode = lambda history: model.embedding(history)
    return model


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


def test_other_losses_are_one_process_s() -> None:
    model = model_of()
    assert computes_anywhere(model, model.losses)
    assert not computes_anywhere(model, lambda batch: model.losses(batch))
    assert not computes_anywhere(model, model_of().losses)


def test_a_model_with_hooks_is_one_process_s() -> None:
    model = hooked()
    hands = several_of(model)
    steps_of(model, hands)
    assert not active_children()


def test_what_changes_in_a_model_reaches_the_others() -> None:
    def scaled(hands: Hands, model: Any) -> list[Tensor]:
        gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
        for step in range(4):
            for part in model.modules():
                if isinstance(part, nn.LayerNorm):
                    part.eps = 10.0**-step
            with torch.no_grad():
                model.embedding.weight[3] += step  # between steps, and not by the optimizer
            gradient(parameters, model.losses, batch_of())
        return [p.grad.clone() for p in parameters.values() if p.grad is not None]

    model = model_of()
    hands = several_of(model)
    found = scaled(hands, model)
    assert hands._left == 0
    hands.close()
    assert close(scaled(Hands(), model_of()), found)


def test_a_model_that_changes_all_the_time_is_one_process_s() -> None:
    model = model_of()
    hands = several_of(model)
    gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
    for step in range(FORKS + 3):
        model.count = step
        gradient(parameters, model.losses, batch_of())
    assert not active_children()


def test_a_process_that_is_killed_costs_nothing() -> None:
    model, alone = model_of(), model_of()
    hands = several_of(model)
    gradients = [gradient_by(model, hands), gradient_by(alone, Hands())]
    for step in range(5):
        for gradient, own in zip(gradients, (model, alone), strict=True):
            gradient(dict(own.named_parameters()), own.losses, batch_of(step))
        assert close([p.grad for p in alone.parameters()], [p.grad for p in model.parameters()])
        if step == 2:
            killed = active_children()
            killed[0].kill()
            killed[0].join()
    assert not {process.pid for process in active_children()} & {process.pid for process in killed}
    hands.close()


def test_a_user_whose_gradient_is_not_finite_counts_as_in_one_process() -> None:
    def ended(hands: Hands, model: Any) -> list[Tensor]:
        with torch.no_grad():
            model.embedding.weight[3] = torch.inf
        gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
        for _ in range(2):
            gradient(parameters, model.losses, batch_of())
        return [p.grad.clone() for p in parameters.values() if p.grad is not None]

    model = model_of("gru")
    hands = several_of(model)
    assert close(ended(Hands(), model_of("gru")), ended(hands, model))
    hands.close()


def test_an_error_is_that_of_one_process_and_leaves_nobody() -> None:
    model = model_of()
    hands = several_of(model)
    gradient, parameters = gradient_by(model, hands), dict(model.named_parameters())
    for _ in range(2):
        gradient(parameters, model.losses, batch_of())
    assert active_children()
    broken = batch_of()
    broken[0].history[:] = ITEMS + 5
    with pytest.raises(IndexError):
        gradient(parameters, model.losses, broken)
    assert not active_children()
    gradient(parameters, model.losses, batch_of())  # goes on
    hands.close()


def test_a_copy_of_a_run_s_model_has_no_processes() -> None:
    hands = several_of(model_of())
    assert type(copy.deepcopy(hands)) is Hands
    assert type(pickle.loads(pickle.dumps(hands))) is Hands


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


def test_a_script_is_the_same_run_and_its_ledger_has_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training, seen = script(), 0
    for batch in training:
        training.step(batch)
        seen = max(seen, len(active_children()))
    assert seen == 2
    assert training.steps == 6
    monkeypatch.setattr(module_of_hands, "_cores", lambda: 1)
    alone = script()
    finish(alone)
    assert alone.spent == training.spent
    assert alone.ledger.events == training.ledger.events
    assert close(list(alone.trained.module.parameters()), list(training.trained.module.parameters()))


def test_a_run_that_checks_itself_finds_nothing_in_what_others_add() -> None:
    training = script(verify=1.0)
    finish(training)
    assert training.steps == 6


def test_a_run_that_checks_itself_finds_a_share_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    training = script(verify=1.0, steps=40)
    own = module_of_hands._added

    def doubled(share: Any, sums: Any, clip: Any) -> Any:
        found = own(share, sums, clip)
        torch._foreach_mul_(sums, 3.0)
        return found

    monkeypatch.setattr(module_of_hands, "_added", doubled)
    with pytest.raises(BrokenPromise):
        finish(training)
    training._steps.end()


def test_lightning_s_loop_has_them_until_it_ends() -> None:
    seen = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(len(active_children()))

    def fitted() -> Any:
        data = data_of(sampling_seed=1)
        data.setup()
        torch.manual_seed(0)
        model = DPFormer(**data.sizes, dim=8, frequencies="uniform", dropout=0.0)
        trainer = pl.Trainer(
            max_steps=5,
            accelerator="cpu",
            callbacks=[Privacy(noise_multiplier=1.0, noise_seed=3), Watch()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, data)
        return list(model.parameters())

    several = fitted()
    assert seen[0] == 0
    assert set(seen[1:-1]) == {2}
    assert not active_children()
    module_of_hands._cores = lambda: 1
    assert close(fitted(), several)


def test_others_are_gone_with_a_run_that_is_thrown_away() -> None:
    training = script()
    for batch in training:
        training.step(batch)
        if training.steps == 3:
            break
    assert len(active_children()) == 2
    del training, batch
    import gc

    gc.collect()
    assert not active_children()


def test_other_processes_never_hold_up_an_exit(tmp_path: Any) -> None:
    """A process that is killed leaves nobody: the others see the end of the line."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        model = model_of()
        hands = several_of(model)
        steps_of(model, hands, steps=3)
        os.write(write, repr([process.pid for process in active_children()]).encode())
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    others = eval(os.read(read, 1000))
    assert len(others) == 2
    for _ in range(100):
        alive = [other for other in others if os.path.exists(f"/proc/{other}/cmdline") and _runs(other)]
        if not alive:
            return
        import time

        time.sleep(0.05)
    raise AssertionError(f"still there: {alive}")


def _runs(pid: int) -> bool:
    try:
        return open(f"/proc/{pid}/stat").read().split(")")[1].split()[0] != "Z"
    except OSError:
        return False
