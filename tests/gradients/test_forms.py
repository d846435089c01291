"""Every form of model that people write: exact by rules, exact by users taken alone, or refused in one line."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from dprec import private
from dprec.errors import UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from tests.gradients.forms import FORMS, Form, Model, Verdict, histories
from tests.one_micro_batch import add_clipped, one_by_one

GUIDE = Path(__file__).parents[2] / "docs/forms.md"
TITLES: dict[Verdict, str] = {"exact": "Fast", "alone": "Slow", "refused": "Refused"}


def trained(model: Model) -> dict[str, Any]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def clipped(model: Model, batch: Tensor, clipping: Clipping) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(value, dtype=torch.float64).detach() for name, value in trained(model).items()}
    add_clipped(sums, trained(model), model.losses, batch, clipping)
    return sums


def cases(*verdicts: Verdict) -> list[Any]:
    return [pytest.param(v, form, id=name) for v in verdicts for name, form in FORMS[v].items()]


@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
@pytest.mark.parametrize(("verdict", "form"), cases("exact", "alone"))
def test_what_trains_is_exact(verdict: Verdict, form: Form, mode: Any) -> None:
    model, batch, clipping = Model(form), histories(), Clipping(mode, 0.3)
    with mock.patch.object(alone, "_say") as say:
        found = clipped(model, batch, clipping)
    said = [call.args[0] for call in say.call_args_list]
    assert bool(said) == (verdict == "alone"), said
    assert all(re.search(form.says, line) and "\n" not in line for line in said), said
    wanted = one_by_one(trained(model), model.losses, batch, clipping)
    size = torch.cat([total.flatten() for total in wanted.values()]).norm()
    for name, total in wanted.items():
        assert (found[name] - total).norm() <= 1e-5 * size, name


def train(form: Form, **options: Any) -> None:
    model, batch = Model(form), histories(24)
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch": 8, "steps": 1, "verify": 0.0}
    run = private(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, **settings | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in run:
            run.step(part)


@pytest.mark.parametrize(("verdict", "form"), cases("refused"))
def test_what_is_refused_is_refused_in_one_line_that_says_what_to_write(verdict: Verdict, form: Form) -> None:
    with pytest.raises(UserError, match=form.says) as caught:
        train(form)
    assert "\n" not in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(("verdict", "form"), cases("exact", "alone"))
def test_what_is_exact_passes_the_probe(verdict: Verdict, form: Form) -> None:
    train(form)


def test_the_guide_lists_the_same_forms() -> None:
    for verdict, title in TITLES.items():
        section = GUIDE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        names = re.findall(r"^(?:- (.+)|\| (?!form )([^|]+?) \| .*)$", section, flags=re.MULTILINE)
        assert {one or other for one, other in names} == {*FORMS[verdict]}
