"""Noise that is owed is drawn once: a forked process neither pays it anew nor shows the rows that owe it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dprec.noise.step_noise import StepNoise
from dprec.sparsity import LazyDP
from tests.sparsity.support import Run, users

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"), pytest.mark.full]

LOOKS: dict[str, Callable[[Run], Any]] = {
    "look-up": lambda run: run.module.big(torch.arange(1, 20).unsqueeze(1)),
    "state_dict": lambda run: run.module.state_dict(),
    "another step": lambda run: run.step(users(3, seed=7)),
}


def trained() -> Run:
    run = Run([LazyDP(tables="big.*")])
    for step in range(4):
        run.step(users(2, seed=step, most=3))
    return run


def told(what: Callable[[], Any]) -> str:
    """What it raises, and nothing where it does not."""
    try:
        what()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_fork(what: Callable[[], str]) -> str:
    """What a forked process, which shares nothing that is written later, returns."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which this test has none of
        child = os.fork()
    if not child:
        try:
            os.write(writing, told(lambda: os.write(writing, what().encode())).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("look", LOOKS)
def test_a_fork_is_refused_what_owes_noise(look: str) -> None:
    run = trained()
    said = in_fork(lambda: told(lambda: LOOKS[look](run)))
    assert said.startswith("UserError: LazyDP: this process was forked")
    assert "\n" not in said
    LOOKS[look](run)  # and the process that trains goes on


def test_debts_are_paid_before_another_run_begins() -> None:
    """Else rows that nobody read again would keep their gradient without its noise."""
    run = trained()
    behind = run.module.big.weight.detach().clone()
    run.strategies.begin(run.module, run.module.trained, StepNoise(run.noise, 1.0, 1.0), 0.25)
    moved = (run.module.big.weight != behind).any(1)
    assert moved[1:].tolist() == [row not in users(2, seed=3, most=3).bags for row in range(1, len(moved))]
