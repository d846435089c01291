"""What Opacus does to a tied model is on record; `test_clipping.py` has dprec's exact sums of it."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from tests import truth
from tests.zoo.recommenders import FunctionalTying

opacus = pytest.importorskip("opacus")
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping  # noqa: E402

C = 0.5


class Tied(nn.Module):
    """The same model for Opacus: embedding, linear layer, logits by F.linear with the embedding's weight."""

    def __init__(self, like: FunctionalTying) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(like.embedding.weight.detach().clone(), freeze=False)
        self.mix = nn.Linear(6, 6)
        self.mix.load_state_dict(like.mix.state_dict())

    def forward(self, history: Tensor) -> Tensor:
        return F.linear(self.mix(self.embedding(history)), self.embedding.weight)


def one_item_repeated(users: int) -> SequenceBatch:
    """Histories in which what is read is also what is predicted, so that the two uses of a row add up."""
    items = torch.arange(1, users + 1).unsqueeze(1).expand(users, 4).contiguous()
    return SequenceBatch(items, items.roll(1, 0).contiguous())


def losses_of(model: nn.Module, batch: SequenceBatch) -> Tensor:
    loss = F.cross_entropy(model(batch.history).flatten(0, 1), batch.targets.flatten(), reduction="none")
    return loss.view(batch.targets.shape).sum(1)


def exact(model: FunctionalTying, batch: SequenceBatch) -> dict[str, Tensor]:
    return truth.user_gradients(model, batch)


@pytest.fixture
def model() -> FunctionalTying:
    torch.manual_seed(3)
    warnings.simplefilter("ignore")
    return FunctionalTying().double()


def test_opacus_hooks_lose_the_tied_output_without_a_word(model: FunctionalTying) -> None:
    batch = one_item_repeated(6)
    wrapped = GradSampleModule(Tied(model).double(), loss_reduction="sum")
    losses_of(wrapped, batch).sum().backward()
    found = wrapped._module.embedding.weight.grad_sample
    expected = exact(model, batch)["embedding.weight"]
    assert not torch.allclose(found, expected, rtol=0.1)
    # Only rows that were read have a gradient; the softmax touches all of them.
    assert (found.flatten(1).norm(dim=1) < expected.flatten(1).norm(dim=1) * 0.9).any()


def test_opacus_ghost_clipping_lets_a_tied_user_pass_the_bound(model: FunctionalTying) -> None:
    batch = one_item_repeated(6)
    wrapped = GradSampleModuleFastGradientClipping(
        Tied(model).double(), loss_reduction="sum", max_grad_norm=C, use_ghost_clipping=True
    )
    losses_of(wrapped, batch).sum().backward()
    claimed = wrapped.get_norm_sample()
    real = truth.norms(exact(model, batch))
    ratio = (real / claimed).max()
    # A user scaled by C / claimed ends with norm C * ratio: the promise is broken by this much.
    assert ratio > 1.05
    print(f"Opacus {opacus.__version__} ghost clipping: a tied user reaches {float(ratio):.2f} C")


def test_opacus_hooks_count_an_item_once_that_a_bag_has_twice() -> None:
    bag, ids, each = nn.EmbeddingBag(9, 3, mode="sum"), torch.tensor([4, 4, 2]), torch.ones(3)
    hooked = GradSampleModule(bag, loss_reduction="sum")
    hooked(ids, torch.tensor([0])).sum().backward()
    assert torch.equal(bag.weight.grad[4], 2 * each)
    assert torch.equal(bag.weight.grad_sample[0, 4], each)
