"""The rule that docs/bring_your_model.md gives, taken from its text, against torch.func."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

from dprec.gradients.clipping import squared_norms
from dprec.gradients.tape import Tape
from dprec.gradients.uses.registry import RULES
from tests import truth
from tests.models.zoo import Zoo, batch_of
from tests.privacy.private_steps import look_at
from tests.test_docs import ROOT, blocks


class WithTensordot(Zoo):
    """Beside a linear map of the same weight, so that cross terms count."""

    def encode(self, history: Tensor) -> Tensor:
        x = super().encode(history)
        return x + torch.tensordot(x, self.mix.weight, ([2], [1]))


def the_guides_rule() -> None:
    (block,) = (block for block in blocks(ROOT / "docs/bring_your_model.md", "python") if "@rule" in block)
    exec(compile(block, "bring_your_model.md", "exec"), {})


def test_the_guides_rule_gives_the_norms_of_torch_func() -> None:
    model, batch = WithTensordot().double(), batch_of(6)
    parameters = dict(model.named_parameters())
    expected = truth.user_gradients(model, batch)
    with mock.patch.dict(RULES):
        the_guides_rule()
        with Tape(parameters, 6) as tape:
            tape.watch(batch)
            losses = model.losses(batch)
        tape.backward(losses)
        look_at(model, batch)
    measured = squared_norms(tape.contributions, {name: p.shape for name, p in parameters.items()}, 6)
    for name in parameters:
        exact = truth.norms({name: expected[name]})
        assert torch.allclose(measured[name].sqrt(), exact, rtol=1e-10, atol=1e-12), name
