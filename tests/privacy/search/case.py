"""One case: a plan run through the engine with a user and without, and what came of it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dprec.errors import UserError
from tests.privacy.search import ascent, oracle
from tests.privacy.search.engine import Engine, Released
from tests.privacy.search.extremes import make_extreme
from tests.privacy.search.model import Assembled
from tests.privacy.search.plan import Plan
from tests.privacy.search.users import Users, users_of

SMALLEST = 0.1  # gradients below may be little but rounding, which the engine scales down
SLACK = 1 + 1e-9  # of what is measured
AGREED = 1e-3  # of the bound, in a calm case, between the engine and plain autograd
LARGER = 2e-2  # by so much the engine may find a norm larger: it adds what rounding may hide where terms cancel
MUCH_LARGER = 0.1  # by so much where terms cancel so far that the engine scales the share down for it
MANY = 50  # users; if they add nothing, as where they overflow, the engine tries each alone, and a few will do
MOST_TRIED = 3  # users that are taken away, one at a time


@dataclass
class Finding:
    """What one case showed."""

    plan: Plan
    ratio: float = 0.0  # |S(D) - S(D')| / C, the largest over the users that were taken away
    allowed: float = 1.0  # what the noise is made for, / C
    user: int = -1  # whose
    own: float = 0.0  # where that is more than allowed: the user's share alone, / C
    off: float = 0.0  # how far that is from the user's exact share, / C
    refused: str = ""  # why the engine would not
    wrong: str = ""  # what else is a breach

    @property
    def breach(self) -> bool:
        """Whether a promise is broken: about a user's own share, or about what the user moves of all."""
        above = self.above and not self.coarse
        return bool(self.wrong) or not self.own <= self.allowed * SLACK or above

    @property
    def coarse(self) -> bool:
        """Whether the run's sentence says that nothing bounds what a user moves of the others' shares."""
        return self.plan.precision.startswith("bf16")

    @property
    def above(self) -> bool:
        return not self.ratio <= self.allowed * SLACK

    def __str__(self) -> str:
        told = (
            f"user {self.user} moves the sum by {self.ratio:.7g} C, allowed {self.allowed:.7g}; off by {self.off:.2g}"
        )
        return f"{told}{'; ' if self.wrong else ''}{self.wrong}\n  {self.plan}"


def run(plan: Plan) -> Finding:
    """Run a plan; what the engine refuses is a finding without a ratio, what it dies of is a breach."""
    finding = Finding(plan)
    try:
        _run(plan, finding)
    except UserError as refused:
        finding.refused = str(refused)
    except Exception as error:  # a traceback for a model that does nothing wrong
        finding.wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return finding


def prepared(plan: Plan) -> tuple[Assembled, Users]:
    """Return a plan's model and users, as bad as the plan makes them."""
    model, batch = Assembled(plan), users_of(plan)
    make_extreme(plan.extremes, model, batch, plan.rng("extremes"))
    if plan.ascent == "cancel":
        trained = [p.requires_grad for p in model.parameters()]
        ascent.cancel(model, batch, plan.rng("whom").randrange(len(batch)))
        for parameter, was in zip(model.parameters(), trained, strict=True):
            parameter.requires_grad_(was)
    if plan.precision == "bf16-true":
        model, batch = model.bfloat16(), batch.to(torch.bfloat16)
    return model, batch


def _run(plan: Plan, finding: Finding) -> None:
    model, batch = prepared(plan)
    if not oracle.trained(model):
        finding.refused = "nothing is trained"
        return
    engine = Engine(plan, model)
    if len(batch) > MANY and oracle.norm(engine([batch.select([0])]).sums) == 0:
        batch = batch.select([*range(19), len(batch) - 1])
    everyone = range(len(batch))

    def with_and_without(user: int) -> tuple[Released, Released]:
        rest = [other for other in everyone if other != user]
        return engine(batch.split(everyone, plan.cut)), engine(batch.split(rest, plan.other_cut) if rest else [])

    if plan.ascent == "climb":
        user = plan.rng("whom").randrange(len(batch))
        ascent.climb(model, batch, lambda: moved_by(*with_and_without(user)))
    everybody = engine(batch.split(everyone, plan.cut))
    twin = oracle.exact(model) if plan.calm else None
    for user in _whom(plan, batch):
        rest = [other for other in everyone if other != user]
        without = engine(batch.split(rest, plan.other_cut) if rest else [])
        ratio = moved_by(everybody, without) / plan.max_norm
        if not finding.ratio >= ratio:
            finding.ratio, finding.user, finding.allowed = ratio, user, everybody.bound / plan.max_norm
        finding.wrong = finding.wrong or told_apart(everybody, without)
        if twin is not None and len(batch) <= 16:
            alone = batch.select([user])
            clipped = engine([alone]).clipped[0]
            down = bool(clipped.scales[0] < (1 - 1e-6) * engine.clipping.scale(clipped.norms)[0])
            found = Found(float(clipped.norms[0]), MUCH_LARGER if down else LARGER)
            _compare(finding, plan, twin, alone, oracle.difference(everybody.sums, without.sums), found)
    if finding.above:
        alone = engine([batch.select([finding.user])])
        finding.own = oracle.norm(alone.sums) / plan.max_norm


def _whom(plan: Plan, batch: Users) -> list[int]:
    """Return the users to take away: the longest, the last and others at random."""
    longest = int((batch.history != 0).sum(1).argmax())
    some = [plan.rng("others").randrange(len(batch)) for _ in range(MOST_TRIED - 2)]
    return sorted({longest, len(batch) - 1, *some})


def moved_by(everybody: Released, without: Released) -> float:
    moved = oracle.norm(oracle.difference(everybody.sums, without.sums))
    return moved if math.isfinite(moved) else math.inf


def told_apart(everybody: Released, without: Released) -> str:
    """Return what else than the sum tells whether the user is there."""
    for name, rows in everybody.noised.items():
        if not torch.equal(rows, without.noised[name]):
            apart = sorted(set(rows.tolist()) ^ set(without.noised[name].tolist()))
            return f"the user decides whether rows {apart} of {name} get noise"
    if everybody.counts is not None and without.counts is not None:
        counted = float((everybody.counts - without.counts).norm())
        if counted > 1 + 1e-9:
            return f"the user moves the counts of rows by {counted:.7g}, allowed 1"
    return ""


class Found(NamedTuple):
    """The norm that the engine finds, and by how much of it it may be larger than the exact one."""

    norm: float
    larger: float


def _compare(finding: Finding, plan: Plan, twin: Assembled, alone: Users, moved: oracle.Sums, found: Found) -> None:
    """Compare what the user moved with the user's exact share, where float32 can tell the two apart.

    The engine may find a norm a little larger, and scale a gradient down that is little but rounding, so what is
    compared is the norm that it found, and the direction.
    """
    truth = oracle.gradient(twin, alone.to(torch.float64))
    size = oracle.norm(truth)
    off = _off(moved, oracle.share(twin, truth, plan.mode, plan.max_norm)) / plan.max_norm
    norm_holds = size * (1 - AGREED) <= found.norm <= size * (1 + found.larger)
    if off <= AGREED and norm_holds:
        finding.off = max(finding.off, off)
        return
    rounded = oracle.gradient(copy.deepcopy(twin).float(), alone)  # as well as float32 does
    size = max(size, 1e-30)
    if (
        oracle.norm(oracle.difference(truth, {n: g.double() for n, g in rounded.items()})) > 1e-6 * size
        or size < SMALLEST
    ):
        return
    finding.off = max(finding.off, off)
    if not norm_holds:
        finding.wrong = finding.wrong or f"the user's norm is {size:.5g}, and the engine finds {found.norm:.5g}"
    finding.wrong = finding.wrong or f"the user's share is off by {off:.3g} C from that of plain autograd"


def _off(moved: oracle.Sums, expected: oracle.Sums) -> float:
    """Return how far a share is from the direction of the exact one, or beyond its length."""
    wanted = oracle.norm(expected) ** 2
    along = sum(float((moved[name] * expected[name]).sum()) for name in expected) / max(wanted, 1e-300)
    part = min(1.0, max(0.0, along))
    return oracle.norm(oracle.difference(moved, {name: part * share for name, share in expected.items()}))
