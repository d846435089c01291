"""Side by side with fastDP: equal where no weight is used twice, and what it does to tied models is on record.

fastDP is not on the package index: pip install git+https://github.com/awslabs/fast-differential-privacy
"""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from tests import truth
from tests.gradients.test_opacus import Tied, losses_of, one_item_repeated
from tests.one_micro_batch import clipped_sums, size
from tests.zoo.recommenders import FunctionalTying, batch_of

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
fastdp = pytest.importorskip("fastDP", reason="fastDP is installed from its repository, not from the package index")

C = 0.5
CLIPPING = Clipping("flat", C)
MODES = ("MixOpt", "ghost", "MixGhostClip")


class TwoTables(nn.Module):
    """A model of items with a table for what is read and another for what is predicted, or one parameter for both."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        like = Tied(FunctionalTying())
        self.embedding, self.mix = like.embedding, like.mix
        self.output = nn.Linear(*like.embedding.weight.T.shape, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, history: Tensor) -> Tensor:
        scores: Tensor = self.output(self.mix(self.embedding(history)))
        return scores

    def losses(self, batch: SequenceBatch) -> Tensor:
        return losses_of(self, batch)


def by_fastdp(model: nn.Module, batch: SequenceBatch, mode: str, clipping: str = "Abadi") -> dict[str, Tensor]:
    """Return the clipped sum of a batch's users, without noise."""
    with contextlib.redirect_stdout(io.StringIO()):
        engine = fastdp.PrivacyEngine(
            model, batch_size=len(batch), sample_size=1000, epochs=1, noise_multiplier=0.0, max_grad_norm=C,
            clipping_mode=mode, clipping_fn=clipping, loss_reduction="sum",
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        engine.attach(optimizer)
        losses_of(model, batch).sum().backward()
        optimizer.step()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [batch_of(6), one_item_repeated(6)], ids=["mixed", "repeated"])
def test_both_have_the_same_sum_where_no_weight_is_used_twice(batch: SequenceBatch, mode: str) -> None:
    found, ours = (
        by_fastdp(TwoTables(), batch, mode),
        clipped_sums(TwoTables(), [batch], CLIPPING, dtype=None),
    )
    assert found.keys() == ours.keys()
    for name, total in ours.items():
        assert torch.allclose(found[name], total, atol=1e-5), name


def test_automatic_clipping_is_auto_s_with_a_bound_of_one() -> None:
    batch, model = batch_of(6), TwoTables()
    found, gradients = by_fastdp(TwoTables(), batch, "MixOpt", "automatic"), truth.user_gradients(model, batch)
    expected = truth.weighted_sum(gradients, Clipping("auto-s", 1.0).scale(truth.norms(gradients)))
    for name, total in expected.items():
        assert torch.allclose(found[name].double(), total, atol=1e-5), name


@pytest.mark.parametrize("mode", MODES)
def test_fastdp_lets_a_tied_user_pass_the_bound(mode: str) -> None:
    """It adds up the squares of both uses and leaves out what they have in common."""
    one = one_item_repeated(1)
    theirs, ours = (
        size(sums)
        for sums in (
            by_fastdp(TwoTables(tied=True), one, mode),
            clipped_sums(TwoTables(tied=True), [one], CLIPPING),
        )
    )
    assert ours <= C * (1 + 1e-5)
    assert theirs > 1.02 * C
    print(f"fastDP {fastdp.__version__}, {mode}: a tied user reaches {theirs / C:.2f} C")


def test_fastdp_loses_the_output_of_a_table_that_a_function_reads() -> None:
    """Scores by `F.linear` with the embedding's weight are no layer: only rows that were read have a gradient."""
    torch.manual_seed(3)
    model, batch = Tied(FunctionalTying()), batch_of(6)
    found = by_fastdp(model, batch, "MixOpt")["embedding.weight"]
    unread = torch.ones(len(found), dtype=torch.bool).index_fill(0, batch.history.unique(), False)
    torch.manual_seed(3)
    plain = truth.user_gradients(FunctionalTying(), batch)["embedding.weight"].sum(0)
    assert unread.any()
    assert plain[unread].any(dim=1).all()
    assert not found[unread].any()
