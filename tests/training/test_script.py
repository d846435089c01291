"""Private training from a plain script: what Lightning's callback would have done, and what breaks its rules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dprec import Privacy, private
from dprec.data import PoissonBatches
from dprec.errors import UserError
from dprec.sparsity import FEST
from dprec.training.script import Training
from tests.privacy.support import data, fit, model

USERS, BATCH = 60, 12


class Sorter(nn.Module):
    """Which of three kinds a user is, by four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def people() -> TensorDataset:
    return TensorDataset(torch.randn(USERS, 4), torch.randint(3, (USERS,)))


def training(module: nn.Module | None = None, users: Any = None, **options: Any) -> Training:
    module = module or Sorter()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(module.parameters(), lr=0.1)

    def losses(batch: Any) -> Tensor:
        x, kind = batch
        return F.cross_entropy(module(x), kind, reduction="none")

    usual = {"losses": losses, "epsilon": 8, "expected_batch": BATCH, "epochs": 2}
    return private(module, optimizer, users or people(), **{**usual, **options})


def take(run: Training) -> Training:
    """Take all steps that are left."""
    for batch in run:
        run.step(batch)
    return run


def test_neither_the_package_nor_this_way_in_waits_for_lightning() -> None:
    code = """
import sys, torch, dprec
layer, users = torch.nn.Linear(3, 1), torch.randn(50, 3)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
run = dprec.private(layer, optimizer, users, losses=lambda x: layer(x).squeeze(1), epsilon=4, expected_batch=9, steps=2)
for batch in run:
    run.step(batch)
run.guarantee(), run.state_dict()
print(sorted({"pytorch_lightning", "lightning", "torchmetrics"} & sys.modules.keys()))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout.strip() == "[]", ran.stderr


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_a_script_and_lightning_take_the_same_steps(sampling: str) -> None:
    """Same draws, same noise seed: weights equal bit for bit, and so do ε and the ledger."""
    ends, books = [], []
    for plain in (False, True):
        torch.manual_seed(3)
        module = data(sampling=sampling, sampling_seed=5)
        recommender = model(
            module, optimizer="sgd", learning_rate=0.5, warmup=0.0, final_rate=1.0, weight_decay=0.0, dropout=0.0
        )
        if plain:
            sgd = torch.optim.SGD(recommender.parameters(), lr=0.5, fused=True)
            run = private(recommender, sgd, module.train_dataloader(), epsilon=3, steps=6, noise_seed=7)
            for batch in run:
                run.step(batch)
            books.append(run.run)
        else:
            books.append(privacy := Privacy(epsilon=3, noise_seed=7))
            fit(privacy, module, recommender)
        ends.append(torch.cat([p.detach().flatten() for p in recommender.parameters()]))
    assert torch.equal(*ends)
    assert books[0].ledger.state_dict() == books[1].ledger.state_dict()
    assert (books[0].sigma, books[0].spent, books[0].guarantee()) == (
        books[1].sigma,
        books[1].spent,
        books[1].guarantee(),
    )


def released(**loader: Any) -> Tensor:
    torch.manual_seed(2)
    module, histories = nn.Embedding(9, 3, padding_idx=0), [torch.randint(1, 9, (n % 6 + 1,)) for n in range(40)]

    def losses(batch: Tensor) -> Tensor:
        return (module(batch) * (batch != 0).unsqueeze(2)).sum((1, 2)).square()

    def collate(items: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(items, batch_first=True) if items else torch.zeros(0, 1, dtype=torch.long)

    options = {"collate_fn": collate, "sampling_seed": 4, **loader}
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    settings: Any = {"noise_multiplier": 1.0, "noise_seed": 1, "expected_batch": 20, "steps": 1, "loader": options}
    run = private(module, sgd, histories, losses=losses, **settings)
    for batch in run:
        assert len(batch) == (1 if not loader else len(batch))
        run.step(batch)
    return module.weight.detach()


@pytest.mark.parametrize(
    "loader", [{"max_users": 3}, {"tokens": 12}, {"tokens": 12, "max_users": 2}, {"num_workers": 1}]
)
def test_micro_batches_change_no_step(loader: dict[str, Any]) -> None:
    assert torch.allclose(released(**loader), released(), atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters()),
        lambda m: torch.optim.NAdam(m.parameters()),
        lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.9),
        lambda m: torch.optim.SGD([{"params": [p], "lr": 0.1} for p in m.parameters()], momentum=0.9, nesterov=True),
    ],
)
def test_any_optimizer_steps_with_a_schedule(make: Any) -> None:
    module = Sorter()
    optimizer = make(module)
    run = training(module, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(run))
    for batches in run.passes():
        for batch in batches:
            run.backward(batch)
            optimizer.step()
            schedule.step()
        with run.public() as evaluated:
            assert not evaluated.training
    assert run.steps == len(run) == 10
    assert 7.9 < run.spent <= 8
    assert "10 steps of Gaussian noise" in run.guarantee()


def test_a_loader_of_ones_own_keeps_its_batch_size_and_collate() -> None:
    def collate(rows: list[Any]) -> list[Tensor]:
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    loader = DataLoader(people(), batch_size=15, shuffle=True, collate_fn=collate)
    run = training(users=loader, expected_batch=None)
    assert run.run.sampling.expected_batch == 15
    take(run)


def test_autocast_around_the_step_is_in_the_sentence() -> None:
    run = training(steps=1, epochs=None)
    for batch in run:
        with torch.autocast("cpu", torch.bfloat16):
            run.step(batch)
    assert "bfloat16" in run.guarantee()


# What breaks the rules. Each gets one run, its model and its optimizer, and is told at the first step.


def steps_past_it(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()


def adds_to_the_gradient(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()


def clips_the_gradient(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
        optimizer.step()


def writes_behind_torch(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        for parameter in module.parameters():
            parameter.grad.data.mul_(0.5)
        optimizer.step()


def clears_the_gradient(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        optimizer.zero_grad()
        optimizer.step()


def skips_steps(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        continue


def accumulates(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)


def steps_twice(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.step(batch)
        optimizer.step()


def asks_twice(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        run.backward(batch)


def uses_another_loader(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    other = DataLoader(people(), batch_size=BATCH)
    for _ in run:
        run.step([next(iter(other))])


def uses_another_loader_alone(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in DataLoader(people(), batch_size=BATCH):
        run.step([batch])


def changes_the_batch(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        batch[0].content[0].mul_(2)
        run.step(batch)


def steps_with_another_optimizer(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    other = torch.optim.Adam(module.parameters())
    for batch in run:
        run.step(batch)
        F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
        other.step()


def asks_for_a_closure(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        optimizer.step(lambda: 0.0)


def steps_in_public(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        with run.public():
            optimizer.step()


def saves_in_between(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        run.state_dict()


BREACHES: dict[Callable[..., None], str] = {
    steps_past_it: "optimizer.step\\(\\) without a private gradient",
    adds_to_the_gradient: "was changed after training.backward",
    clips_the_gradient: "was changed after training.backward",
    writes_behind_torch: "was changed after training.backward",
    clears_the_gradient: "was changed after training.backward",
    skips_steps: "no step was taken with it",
    accumulates: "not followed by optimizer.step",
    steps_twice: "optimizer.step\\(\\) without a private gradient",
    asks_twice: "called twice",
    uses_another_loader: "another batch than was drawn",
    uses_another_loader_alone: "no batch is drawn",
    changes_the_batch: "changed since",
    steps_with_another_optimizer: "written to between two steps",
    asks_for_a_closure: "closure",
    steps_in_public: "without a private gradient",
    saves_in_between: "save after the step",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_a_script_that_breaks_the_rules_is_told_at_its_first_step(breach: Callable[..., None]) -> None:
    module = Sorter()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = training(module, optimizer=optimizer)
    with pytest.raises(UserError, match=BREACHES[breach]) as told:
        breach(run, module, optimizer)
    assert "\n" not in str(told.value)
    assert run.steps <= 1


class Normed(Sorter):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=not frozen), nn.ReLU(), nn.Linear(8, 3))
        self.frozen = frozen
        self.train()

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.network[1].train(mode and not self.frozen)
        return self


def test_batch_normalisation_is_refused_before_the_first_step() -> None:
    run = training(Normed(frozen=False))
    with pytest.raises(UserError, match="batch_norm"):
        take(run)
    assert run.steps == 0


def test_evaluating_in_train_mode_moves_running_statistics_and_is_told() -> None:
    module = Normed(frozen=True)
    run = training(module)
    steps = iter(run)
    run.step(next(steps))
    module.network[1].training = True
    module(torch.randn(9, 4))
    module.train()
    with pytest.raises(UserError, match="running_mean' was written to between two steps"):
        next(steps)


def test_what_is_public_may_be_written_and_is_named() -> None:
    module = Normed(frozen=True)
    run = training(module)
    for batch in run:
        run.step(batch)
        with run.public():
            module.network[1].training = True
            module(torch.randn(9, 4))
        assert module.training
        assert not module.network[1].training
    assert "what the script wrote to network.1.running_mean" in run.guarantee()
    assert "number of users (60)" in run.guarantee()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"losses": None}, "has no losses"),
        ({"epochs": None}, "how long to train"),
        ({"steps": 3}, "how long to train"),
        ({"expected_batch": None}, "give expected_batch"),
        ({"epsilon": None}, "neither epsilon nor noise_multiplier"),
        ({"optimizer": torch.optim.SGD(Sorter().parameters(), lr=1.0)}, "not the model's"),
        ({"users": iter([1])}, "has no __len__\\(\\), which has to return how many users"),
        ({"loader": {"max_users": 0}}, "max_users is 0"),
        ({"loader": {"shuffle": True}}, "shuffle is decided by the draws"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        training(**options)


def test_optimizers_that_cannot_step_are_refused() -> None:
    module = Sorter()
    with pytest.raises(UserError, match="LBFGS asks for the loss several times"):
        training(module, optimizer=torch.optim.LBFGS(module.parameters()))
    with pytest.raises(UserError, match=r"network\.3\.weight.*does not move it"):
        training(module, optimizer=torch.optim.SGD(module.network[0].parameters(), lr=0.1))


def test_losses_that_are_no_row_each_or_change_precision_are_refused() -> None:
    module = Sorter()

    def mean(batch: Any) -> Tensor:
        return F.cross_entropy(module(batch[0]), batch[1])

    def low(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(module(batch[0]), batch[1], reduction="none")

    def counting(batch: Any) -> Tensor:
        seen.append(len(batch[0]))
        return F.cross_entropy(module(batch[0]), batch[1], reduction="none")

    seen: list[int] = []
    for losses, said in ((mean, "one loss per user"), (low, "autocast by itself"), (counting, "seen")):
        run = training(module, losses=losses)
        with pytest.raises(UserError, match=said):
            take(run)
        assert run.steps == 0


def test_a_draw_of_nobody_is_a_step() -> None:
    run = training(expected_batch=1, epochs=0.3)
    for batch in run:
        run.step(batch)
    assert run.steps == 18


def test_a_run_stops_before_it_passes_its_budget() -> None:
    run = training(epsilon=2.0, noise_multiplier=1.0, delta=1e-2, epochs=100)
    for batch in run:
        run.step(batch)
    assert 0 < run.steps == len(run) < 500
    assert run.spent <= 2.0
    for _ in run:
        raise AssertionError


def saved(steps: int, **options: Any) -> tuple[nn.Module, Training, dict[str, Any]]:
    module = Sorter()
    run = training(module, loader={"sampling_seed": 3}, noise_seed=1, **options)
    for batch in run:
        run.step(batch)
        if run.steps == steps:
            break
    return module, run, {"model": module.state_dict(), "training": run.state_dict()}


def test_a_resumed_run_ends_with_the_ledger_of_an_uninterrupted_one(tmp_path: Any) -> None:
    users = people()
    _, whole, _ = saved(10, users=users)
    _, _, state = saved(4, users=users)
    torch.save(state, tmp_path / "run.pt")
    state = torch.load(tmp_path / "run.pt", weights_only=True)
    module = Sorter()
    module.load_state_dict(state["model"])
    run = training(module, users=users, loader={"sampling_seed": 3}, noise_seed=1)
    run.load_state_dict(state["training"])
    for batch in run:
        run.step(batch)
    assert run.steps == 10
    assert run.ledger.state_dict() == whole.ledger.state_dict()


def go_on(run: Training, state: dict[str, Any]) -> None:
    run.load_state_dict(state["training"])
    take(run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 9}, "epsilon was 8 and is now 9"),
        ({"expected_batch": 13, "epochs": 13 / 6}, "batch_size was 12"),
        ({"epochs": 3}, "steps was 10 and is now 15"),
        ({"max_norm": 2.0}, "max_norm"),
        ({"noise_seed": None}, "noise_seeded"),
        ({}, "not the one that the training state was saved with"),
    ],
)
def test_a_run_is_not_resumed_as_another(options: Any, said: str) -> None:
    module, _, state = saved(3)
    if options:
        options = {"noise_seed": 1, "loader": {"sampling_seed": 3}, **options}
    else:
        module, options = Sorter(), {"noise_seed": 1, "loader": {"sampling_seed": 3}}
    with pytest.raises(UserError, match=said):
        go_on(training(module, **options), state)


def test_a_private_loader_of_ones_own_is_taken_whole() -> None:
    users = torch.randn(USERS, 4)
    draws = PoissonBatches(USERS, BATCH)
    loader = DataLoader(users, batch_sampler=draws, collate_fn=lambda rows: [torch.stack(rows)] if rows else [])
    module = Sorter()
    run = training(module, users=loader, expected_batch=None, losses=lambda x: module(x).square().sum(1))
    for batch in run:
        run.step(batch)
    with pytest.raises(UserError, match="leave out expected_batch"):
        training(users=loader)


class Scaled(Sorter):
    """Takes its scale from the first batch that it sees."""

    def __init__(self, table: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4) if table else None
        self.register_buffer("mean", torch.zeros(4))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.mean, self.ready = torch.from_numpy(x.numpy().mean(0)), True
        x = x - self.mean
        return super().forward(x if self.table is None else x + self.table(x[:, 0].abs().long() % 10))


@pytest.mark.parametrize("table", [False, True])
def test_a_scale_taken_from_the_first_batch_is_refused(table: bool) -> None:
    """Whatever runs losses first, a look at the precision or a count of look-ups, is itself looked at."""
    run = training(Scaled(table), sparsity=FEST(keep=5, share=0.1) if table else None)
    with pytest.raises(UserError, match="changes with the users' data"):
        take(run)
    assert run.steps == 0


def test_a_batch_that_a_loop_left_is_offered_again() -> None:
    run = training()
    first = next(iter(run))
    with pytest.raises(UserError, match="save after the step"):
        run.state_dict()
    again = next(iter(run))
    assert again is first
    run.step(again)
    assert next(iter(run)) is not first


def test_a_gradient_without_its_step_is_not_left_behind() -> None:
    run = training()
    run.backward(next(iter(run)))
    with pytest.raises(UserError, match="not followed by optimizer.step"):
        next(iter(run))


def test_after_a_step_that_an_error_ended_no_raw_step_passes() -> None:
    module = Sorter()
    optimizer = torch.optim.Adam(module.parameters())
    run = training(module, optimizer=optimizer)
    run.backward(next(iter(run)))
    betas, optimizer.param_groups[0]["betas"] = optimizer.param_groups[0]["betas"], None
    with pytest.raises(TypeError):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = betas
    with pytest.raises(UserError, match="cut short"):
        optimizer.step()


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_hook_of_the_optimizer_changes_no_step(late: bool, post: bool) -> None:
    module = Sorter()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def hook(*_: Any) -> None:
        with torch.no_grad():
            weight = module.network[0].weight
            (weight if post else weight.grad).add_(1.0)

    register = optimizer.register_step_post_hook if post else optimizer.register_step_pre_hook
    if not late:
        register(hook)
    run = training(module, optimizer=optimizer)
    if late:
        register(hook)
    with pytest.raises(UserError, match="written to" if post else "was changed"):
        take(run)
