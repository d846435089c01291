"""A run that checks itself: at random steps, is one user's share what it should be, and no more than was promised?

A step is checked before anything of it is released. One drawn user is taken at random, by the operating system's
entropy. The user's gradient is computed alone, in float64, by plain autograd, from what the data makes of this user
alone, and clipped: the share. It is compared with what the engine adds for this user alone, and with the difference
that the user makes to the engine's sum over the batch, or over some of its users. Then the sum is compared with the one
that is about to be released, and that one with what it is once it has its noise.

Nothing of it moves a generator, a gradient, a parameter or what rows owe: a run with and without checks is the same.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.checks.perturbed import Shaken
from dprec.checks.state import State, changed, state_of
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import select_users
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.tables import tables_of
from dprec.verify.drawn import Drawn
from dprec.verify.generators import Generators, kept
from dprec.verify.late_noise import LateNoise
from dprec.verify.noise_watch import NoiseWatch
from dprec.verify.one_share import SAME, Judge
from dprec.verify.recount import Vector, less, norm, recount, squares
from dprec.verify.spare_time import SpareTime
from dprec.verify.step_check import StepCheck, Summed
from dprec_kernels.sparse import of_rows

FEW = 16  # users that are summed with and without one of them, where it is not the whole batch
FIRST = 4  # users that are checked in the first step, or steps where those have fewer; later it is one a step
TRIES = 6  # to find users with a gradient
WHOLE = 8  # the whole batch is taken in one of so many checks
AGAIN = 2  # a difference is looked at so many times more, beside the weights as they are: a kink is no error
READINGS = 64  # times the data is asked again for the same users, before a difference is no random data's
NUDGE = 1e-3  # standard deviation of the noise that moves the weights then
STEADY = 1e-5  # of its norm: by so much a user's gradient may differ from itself


class BrokenPromise(UserError):
    """What was about to be released is not what the guarantee says."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the run stops before the step is released, since it does not keep what its guarantee says: {found}; "
            "report the model, or leave out what uses that parameter"
        )


@dataclass(frozen=True)
class Case:
    """Micro-batches of one user alone, of some users with that one, and of the same without."""

    alone: list[Any]
    with_user: list[Any]
    without: list[Any]
    asked: Sequence[tuple[Sequence[int], list[Any]]] = ()  # which of them the data was asked for, and of whom


class SelfCheck(StepCheck):
    """Checks a share `share` of a run's time."""

    def __init__(
        self,
        share: float,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        clipping: Clipping,
        rules: RowRules,
        drawn: Drawn,
    ) -> None:
        self.time = SpareTime(share)
        self.checked = 0  # steps
        self._users = 0  # with a gradient, that were checked
        self._module, self._clipping, self._rules, self._drawn = module, clipping, rules, drawn
        tables = {table.name: table for table in tables_of(module, trained)}
        self._tables = list(tables)
        self._padding = padding_rows(module)
        self._watch = NoiseWatch(self._padding)
        self._late = LateNoise(self._watch, tables, rules)
        self._due, self._seed = False, secrets.randbits(32)

    def begin(self) -> None:
        self.time.start()
        with self.time.check():
            self._late.begin()
        early = self.checked < FIRST and self._users < FIRST
        self._due = self.time.due() or (early and self.time.share > 0)
        if self._due:
            with self.time.check():
                self._then = Generators.now(self._drawn.streams)

    def sums(self, step: Summed) -> None:
        if not self._due:
            return
        with self.time.check(), kept(self._drawn.streams):
            drew = self._then.moved()
            self._refuse_rows(step)
            if not step.parts:
                return
            first = not self.checked
            self.checked += 1
            whole = first or secrets.randbelow(WHOLE) == 0
            before = self._state(step)
            judge = Judge(
                step.parameters,
                self._tables,
                step.losses,
                self._clipping,
                self._rules,
                self._drawn.streams,
                step.alone,
            )
            left, tries, seen = max(1, FIRST - self._users), 0, set[Any]()
            while left and tries < TRIES:
                full = whole and not tries and not judge.low
                case = self._case(step.parts, full, seen)
                if full and not drew and judge.fulfilled(case.alone, case.without, _vector(step.sums)):
                    whole, found = False, None  # nothing is left to be seen by making the sum again
                else:
                    found = judge.problem(case.alone, case.with_user, case.without)
                exact = judge.exact
                if found is not None and self._again(judge, step.parameters, case) and not self._other_data(case):
                    raise BrokenPromise(found + self._of_another_batch(step, case))
                told = any(squares(exact).values())  # who has no gradient tells little
                left, tries, self._users = left - told, tries + 1, self._users + told
            if whole:
                self._compare_with_released(step)
            self._refuse_state(exact, judge.gradient(case.alone), before, self._state(step))

    def noising(self, name: str, total: Tensor | RowSum) -> None:
        if self._due and self._rules.noised_now(name):
            with self.time.check():
                self._watch.before(name, total)

    def noised(self, name: str, gradient: Tensor, batch: float, std: float) -> None:
        with self.time.check():
            if not self._rules.noised_now(name):
                self._late.read(name, gradient.indices()[0])
                if self._due:
                    self._late.follow(name, gradient.indices()[0], std / batch)
            elif self._due:
                self._watch.after(name, gradient, batch, std)

    def end(self) -> None:
        with self.time.check():
            self._refuse_noise()
        self.time.stop()

    def stepping(self, optimizer: Optimizer) -> None:
        with self.time.check():
            self._late.step(optimizer, self._rules.held)

    def stepped(self) -> None:
        with self.time.check():
            self._late.stepped()
            self._refuse_noise()

    def _refuse_noise(self) -> None:
        found = self._watch.problem()
        if found is not None:
            raise BrokenPromise(found)

    def _refuse_rows(self, step: Summed) -> None:
        """Refuse a batch whose rows are not the users that were drawn, one each."""
        users, rows = self._drawn.users, step.users
        if len(set(users)) != len(users):
            raise BrokenPromise(f"of {len(users)} users that the sampler drew some are the same")
        if rows != len(users):
            raise BrokenPromise(f"the sampler drew {len(users)} users and the batch has {rows} rows: give one row each")

    def _case(self, parts: Sequence[Any], whole: bool, seen: set[Any]) -> Case:
        """Take a drawn user at random, as the data gives it, or as the batch does where the data is random.

        One who was `seen` in this step is taken only when nobody else is left.
        """
        users = self._drawn.users
        if users:
            user = _another(users, seen)
            if not self._drawn.at_random(users):
                alone = self._drawn.parts([user])
                if sum(map(len, alone)) != 1:
                    raise BrokenPromise(f"the data gives {sum(map(len, alone))} rows for a user: give one row each")
                rest = [other for other in users if other != user]
                if not whole:
                    rest = random.Random(secrets.randbits(128)).sample(rest, min(FEW - 1, len(rest)))
                asked = [([user], alone), (rest, self._drawn.parts(rest))]
                if not whole:
                    asked.append(([user, *rest], self._drawn.parts([user, *rest])))
                return Case(alone, list(parts) if whole else asked[-1][1], asked[1][1], asked)
        number, place = _another([(n, row) for n, part in enumerate(parts) for row in range(len(part))], seen)
        part = parts[number]
        rest = [other for other in range(len(part)) if other != place]
        alone = [select_users(part, [place])]
        if whole:
            left = [select_users(part, rest)] if rest else []
            return Case(alone, list(parts), [*parts[:number], *left, *parts[number + 1 :]])
        some = sorted(random.Random(secrets.randbits(128)).sample(rest, min(FEW - 1, len(rest))))
        return Case(alone, [select_users(part, [place, *some])], [select_users(part, some)] if some else [])

    def _other_data(self, case: Case) -> bool:
        """Whether the data turns out to be random only now, however rarely, so that other data was compared."""
        if any(self._drawn.differs(users, made, READINGS) for users, made in case.asked):
            return True
        return bool(case.asked) and self._drawn.at_random(self._drawn.users, READINGS)

    def _of_another_batch(self, step: Summed, case: Case) -> str:
        """Say so where the step's batch itself is none that the data gives for its users."""
        users = self._drawn.users
        if not case.asked or not self._drawn.differs(users, list(step.parts)):
            return ""
        return (
            " (the batch holds other numbers than the data gives for these users a second time: if it draws them from "
            "os.urandom or secrets, draw from random, numpy or torch)"
        )

    def _again(self, judge: Judge, parameters: Mapping[str, nn.Parameter], case: Case) -> bool:
        """Whether the difference is there beside the weights as they are, too."""
        shaken = Shaken(parameters, self._tables, self._padding)
        try:
            for _ in range(AGAIN):
                judge.problem(case.alone, case.with_user, case.without, shaken.read)  # hears which rows are read
                shaken.by(NUDGE)
                if judge.problem(case.alone, case.with_user, case.without, shaken.read) is None:
                    return False
        finally:
            shaken.restore()
        return True

    def _compare_with_released(self, step: Summed) -> None:
        """Refuse sums that are not what the engine gives for the same micro-batches and the same draws."""
        self._then.restore()
        again = recount(
            step.parameters,
            self._tables,
            step.losses,
            step.parts,
            self._clipping,
            self._rules,
            self._drawn.streams,
            same_draws=False,
            alone=step.alone,
        ).total
        off: dict[str, float] = {}
        for name, total in _vector(step.sums).items():
            if name in again and again[name].is_sparse and not total.is_sparse:
                mine = again[name].coalesce()
                rows = mine.indices()[0]
                elsewhere = norm({name: total}) ** 2 - norm({name: total[rows]}) ** 2
                rounding = 1e-6 * norm({name: total}) ** 2
                off[name] = norm({name: total[rows].double() - mine.values()}) ** 2 + max(0.0, elsewhere - rounding)
            else:
                off |= squares(less({name: total}, {name: again[name]} if name in again else {}))
        size = sum(off.values()) ** 0.5
        if not size <= SAME * self._clipping.max_norm * step.users**0.5:
            raise BrokenPromise(
                f"parameter '{max(off, key=off.__getitem__)}': the same batch gives another sum when it is added up "
                f"again, by {size / self._clipping.max_norm:.2g} clipping norms"
            )

    def _state(self, step: Summed) -> State:
        """Look at all that could keep something of users; a check reads rows as they lie, so that none pays."""
        return state_of(self._module, seed=self._seed, losses=step.losses)

    def _refuse_state(self, exact: Vector, later: Vector, before: State, after: State) -> None:
        """Refuse a model that keeps anything of the users it was given."""
        if names := changed(before, after):
            raise BrokenPromise(f"'{names[0]}' is written to in losses(batch), without noise")
        if norm(less(later, exact)) > STEADY * norm(exact):
            raise BrokenPromise("losses(batch) gave one user another gradient after others: it keeps something of them")


def _vector(sums: Mapping[str, Tensor | RowSum]) -> Vector:
    found: Vector = {}
    for name, total in sums.items():
        if isinstance(total, RowSum):
            rows, values = total.merged()
            total = of_rows(rows, values, total.shape, merged=True)
        found[name] = total
    return found


def _another(among: Sequence[Any], seen: set[Any]) -> Any:
    found = secrets.choice([one for one in among if one not in seen] or among)
    seen.add(found)
    return found
