"""The layers that Opacus has tests of: each is exact, beside plain autograd and Opacus's own hooks."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped

pytest.importorskip("opacus")
from opacus.grad_sample import GradSampleModule

from tests.gradients.layers import Layer, Row, attend_second, layers, second

GUIDE = Path(__file__).parents[2] / "docs/forms.md"
TITLES = {"exact": "Fast layers", "alone": "Slow layers"}
LAYERS = layers()
CLIPPING = Clipping("flat", 0.7)


def one_by_one(layer: nn.Module, of: Layer, users: Tensor) -> dict[str, Tensor]:
    """Return each user's gradients, (B, ...), by plain autograd."""
    names, parameters = zip(*layer.named_parameters(), strict=True)
    own = [
        torch.autograd.grad(of.losses(layer, users[place : place + 1]).sum(), parameters) for place in range(len(users))
    ]
    return {name: torch.stack(each) for name, each in zip(names, zip(*own, strict=True), strict=True)}


def by_opacus(layer: nn.Module, of: Layer, users: Tensor) -> dict[str, Tensor]:
    """Do the same by Opacus's hooks."""
    first = of.use not in (second, attend_second)
    hooked = GradSampleModule(layer, batch_first=first, loss_reduction="sum")
    try:
        of.losses(hooked, users).sum().backward()
        return {name: parameter.grad_sample for name, parameter in layer.named_parameters()}
    finally:
        hooked.remove_hooks()


def sums(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the clipped sums of each user's gradients."""
    norms = torch.cat([each.double().flatten(1) for each in gradients.values()], 1).norm(dim=1)
    return {name: torch.tensordot(CLIPPING.scale(norms), each.double(), 1) for name, each in gradients.items()}


def differ(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    size = torch.cat([total.flatten() for total in wanted.values()]).norm()
    return [name for name, total in wanted.items() if not (found[name] - total).norm() <= 1e-5 * size]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("row", [pytest.param(row, id=", ".join(name)) for name, row in LAYERS.items()])
def test_a_layer_is_exact_with_all_its_options(row: Row) -> None:
    for place, of in enumerate(row):
        torch.manual_seed(place)
        layer, users = of.make(), of.users()
        found = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in layer.named_parameters()}
        with mock.patch.object(alone, "_say") as say:
            add_clipped(
                found,
                dict(layer.named_parameters()),
                lambda x, of=of, layer=layer: of.losses(layer, x),
                users,
                CLIPPING,
            )
        assert say.called == (row.verdict == "alone"), (layer, say.call_args_list)
        assert not differ(found, sums(one_by_one(layer, of, users))), layer
        if row.hooks:
            assert not differ(found, sums(by_opacus(layer, of, users))), layer


def test_the_guide_lists_the_same_layers() -> None:
    text = GUIDE.read_text()
    for verdict, title in TITLES.items():
        section = text.split(f"\n### {title}\n")[1].split("\n#")[0]
        listed = set(re.findall(r"^- (.+?): (.+)$", section, flags=re.MULTILINE))
        assert listed == {name for name, row in LAYERS.items() if row.verdict == verdict}
    assert {row.verdict for row in LAYERS.values()} == {*TITLES}
