"""Scripts that trained with Opacus: the same clipped sums, draws and ε, and what Opacus has wrapped is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dprec.accounting.composition import epsilon
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped
from tests.training.scripts import Sorter, people, take, training

pytest.importorskip("opacus")
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer

pytestmark = pytest.mark.full
GUIDE = Path(__file__).parents[2] / "docs/from_opacus.md"
WORDS, DIM, USERS = 11, 4, 6


class Texts(nn.Module):
    """The page's model, smaller."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.lstm = kind(DIM, DIM, batch_first=True)
        self.output = nn.Linear(DIM, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(words))[0].mean(1))


def test_the_clipped_sum_is_that_of_opacus() -> None:
    torch.manual_seed(0)
    theirs, ours = Texts(DPLSTM), Texts(nn.LSTM)
    for part in ("embedding", "lstm", "output"):
        getattr(ours, part).load_state_dict(getattr(theirs, part).state_dict())
    words, kinds = torch.randint(WORDS, (USERS, 5)), torch.arange(USERS) % 2
    clipping = Clipping("flat", 0.8)
    hooked = GradSampleModule(theirs)
    sgd: Any = torch.optim.SGD(theirs.parameters(), lr=1.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=0.8, expected_batch_size=USERS)
    F.cross_entropy(hooked(words), kinds).backward()
    optimizer.clip_and_accumulate()
    summed: Any = dict(theirs.named_parameters())
    wanted = {re.sub(r"l0\.(.h)\.(\w+)", r"\2_\1_l0", name): each.summed_grad for name, each in summed.items()}
    sums = {name: torch.zeros_like(p).detach() for name, p in ours.named_parameters()}

    def losses(batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(ours(batch[0]), batch[1], reduction="none")

    users = add_clipped(sums, dict(ours.named_parameters()), losses, Batch([words, kinds]), clipping)
    assert 0 < int((users.norms > 0.8).sum()) < USERS
    assert wanted.keys() == sums.keys()
    for name, total in wanted.items():
        assert torch.allclose(sums[name], total, rtol=1e-4, atol=1e-5), name


class Batch(list[Tensor]):
    def __len__(self) -> int:
        return USERS


def test_the_rate_is_that_of_opacus() -> None:
    loader = DataLoader(people(), batch_size=12, shuffle=True)
    model = Sorter()
    made = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0,
    )  # fmt: skip
    assert training(users=loader, expected_batch=None).run.sampling.rate == made[2].sample_rate
    with pytest.raises(UserError, match="expected_batch"):
        training(users=made[2], expected_batch=None)


def rows() -> list[list[float]]:
    number = r" ([\d.,e-]+) \|"
    found = re.findall(r"^\|" + number * 7 + "$", GUIDE.read_text(), re.MULTILINE)
    return [[float(each.replace(",", "")) for each in row] for row in found]


def test_epsilon_is_at_most_that_of_opacus_and_as_the_page_says() -> None:
    assert len(rows()) == 3
    for sigma, rate, steps, delta, *said in rows():
        opacus = []
        for kind in (PRVAccountant, RDPAccountant):
            accountant = kind()
            accountant.history = [(sigma, rate, int(steps))]
            opacus.append(float(accountant.get_epsilon(delta)))
        ours = epsilon({(sigma, rate): int(steps)}, delta)
        assert ours <= min(opacus)
        assert opacus[0] - ours < 0.02  # both are upper bounds of one number, on grids
        assert [ours, *opacus] == pytest.approx(said, abs=2e-3)


def test_a_model_with_hooks_of_opacus_is_refused_until_it_is_taken_out() -> None:
    model = Sorter()
    wrapped = GradSampleModule(model)
    for given in (wrapped, model):
        with pytest.raises(UserError, match=r"hooks of Opacus.*to_standard_module"):
            take(training(given))
    assert take(training(wrapped.to_standard_module())).steps == 10


def test_the_optimizer_of_opacus_is_refused() -> None:
    model = Sorter()
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=12
    )
    with pytest.raises(UserError, match="Opacus's.*original_optimizer"):
        training(model, optimizer=optimizer)
    assert take(training(model, optimizer=optimizer.original_optimizer)).steps == 10
