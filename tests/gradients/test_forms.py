"""Every form of model that people write, every layer, and every call of an operation that has a rule.

Each is exact by rules, exact by users taken alone, or refused in one line: docs/forms.md lists forms and slow layers.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from dprec import private
from dprec.errors import UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from tests import truth, zoo
from tests.one_micro_batch import clipped_sums, off, one_by_one
from tests.zoo import Small, calls, forms  # noqa: F401 which enter theirs

pytest.importorskip("opacus")
from opacus.grad_sample import GradSampleModule

from tests.zoo import layers

GUIDE = Path(__file__).parents[2] / "docs/forms.md"
TITLES = {"exact": "Fast", "alone": "Slow", "refused": "Refused"}


def by_opacus(model: layers.Layered, users: Any, clipping: Clipping) -> dict[str, torch.Tensor]:
    """Return the clipped sums by Opacus's hooks."""
    first = model.use not in (layers.second, layers.attend_second)
    hooked = GradSampleModule(model.layer, batch_first=first, loss_reduction="sum")
    try:
        layers.Layered(hooked, model.use).losses(users).sum().backward()
        gradients = {name: parameter.grad_sample for name, parameter in model.named_parameters()}
    finally:
        hooked.remove_hooks()
    return truth.weighted_sum(gradients, clipping.scale(truth.norms(gradients)))


def cases(*tags: str) -> list[Any]:
    return [pytest.param(small, id=name) for name, small in zoo.tagged(*tags).items()]


TRAIN = [*cases("form", "exact"), *cases("form", "alone")]
LAYERS = cases("layer")
CALLS = [pytest.param(small, id=name, marks=pytest.mark.full) for name, small in zoo.tagged("call").items()]


def exact(small: Small, mode: Any) -> None:
    """See that the engine's sums are those of plain gradients, and that users are taken alone where they have to be."""
    clipping = Clipping(mode, 0.3)
    for place, (make, batch) in enumerate(small.variants):
        torch.manual_seed(place)
        model, users = make(), batch()
        with mock.patch.object(alone, "_say") as say:
            found = clipped_sums(model, [users], clipping)
        said = [call.args[0] for call in say.call_args_list]
        assert bool(said) == ("alone" in small.tags), (model, said)
        assert all(re.search(small.says, line) and "\n" not in line for line in said), said
        assert off(found, one_by_one(model, users, clipping)) <= 1e-5, model
        if "by hooks" in small.tags:
            assert off(found, by_opacus(model, users, clipping)) <= 1e-5, model


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
@pytest.mark.parametrize("small", TRAIN)
def test_what_trains_is_exact(small: Small, mode: Any) -> None:
    exact(small, mode)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("small", [*LAYERS, *CALLS])
def test_it_is_exact_with_all_options_and_however_arguments_are_given(small: Small) -> None:
    exact(small, "flat")


def train(small: Small) -> None:
    model, batch = small.make(), small.batch(24)
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch": 8, "steps": 1, "verify": 0.0}
    run = private(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in run:
            run.step(part)


@pytest.mark.parametrize("small", cases("form", "refused"))
def test_what_is_refused_is_refused_in_one_line_that_says_what_to_write(small: Small) -> None:
    with pytest.raises(UserError, match=small.says) as caught:
        train(small)
    assert "\n" not in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("small", TRAIN)
def test_what_is_exact_passes_the_probe(small: Small) -> None:
    train(small)


def test_the_guide_lists_the_same_forms() -> None:
    for verdict, title in TITLES.items():
        section = GUIDE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        rows = re.findall(r"^(?:- (.+)|\| (?!form )([^|]+?) \| .*)$", section, flags=re.MULTILINE)
        assert {one or other for one, other in rows} == {*zoo.tagged("listed", verdict)}


def test_the_guide_lists_the_slow_layers() -> None:
    section = GUIDE.read_text().split("\n## Layers\n")[1].split("\n#")[0]
    rows = re.findall(r"^- (.+?): (.+)$", section, flags=re.MULTILINE)
    assert {", ".join(row) for row in rows} == {*zoo.tagged("layer", "alone")}
    assert not zoo.tagged("layer", "refused")
