"""Checks a run's steps: what a drawn user adds must be that user's own, and no more than was promised.

It checks the first steps and then random ones, before they are recorded. For a few drawn users it computes the gradient
by plain autograd in float64, from each user's data alone and among others. Other users must not change it, and the
engine has to add it, clipped, alone and in a sum. Later, the sum to be released is compared before and after its noise.

No check changes a generator, a gradient, a parameter or the noise that rows owe: a run is the same with and without.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.checks.loading import same_numbers
from dprec.checks.state import Unchanged
from dprec.contract import Losses
from dprec.errors import MixedUsers, UserError
from dprec.gradients.clipping import LARGEST, Clipping
from dprec.gradients.parameters import padding_rows
from dprec.gradients.uses.batches import Alone, batch_tensors, select_alone, select_users
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.sparsity.rows.tables import tables_of
from dprec.verify.drawn_users import READINGS, DrawnUsers
from dprec.verify.late_noise import LateNoise
from dprec.verify.noise_watch import NoiseWatch
from dprec.verify.one_share import BrokenPromise, Judge
from dprec.verify.perturbed import perturbed_weights
from dprec.verify.recount import Engine, Vector, less, norm

FEW = 16  # users in a check
FIRST = 4  # of them checked alone in the first steps; later one
STEPS = 3  # that are always checked: an error may not show at the first weights
TRIES = 6  # to find users with a gradient
SAME = 1e-4  # clipping norms: how much a user's share may change after others were computed
SKIPPED = 4  # one in so many of the steps with time for a check is checked, chosen at random
NUDGES = (1e-3, 2e-3)  # standard deviations of noise in the weights, with which a difference is checked again


class SelfCheck:
    """Checks the first steps, and others for a share `share` of a run's time."""

    def __init__(
        self,
        share: float,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        clipping: Clipping,
        strategies: TableStrategies,
        drawn: DrawnUsers,
    ) -> None:
        self.time = SpareTime(share)
        self._module, self._clipping, self._strategies, self._drawn = module, clipping, strategies, drawn
        tables = {table.name: table for table in tables_of(module, trained)}
        self._tables = list(tables)
        self._padding = padding_rows(module)
        self._watch = NoiseWatch(self._padding)
        self._late = LateNoise(self._watch, tables, strategies)
        self._engine: Engine | None = None  # of a step that is checked
        self.checked = self._steps = 0
        self._finite = False  # whether any user had a finite loss
        self._compared = False  # whether a user was computed both alone and among others
        self.uneven = False  # whether a user's numbers were seen to depend on other users in the batch
        self.restart()

    def restart(self) -> None:
        """Check the next steps like the first ones, for example after parts of a model went to training mode."""
        self._early = STEPS  # checks left of the first ones, each with several users
        self._users_left = FIRST  # users with a gradient still to be checked alone in these

    def begin(
        self,
        parameters: Mapping[str, nn.Parameter],
        losses: Losses,
        parts: Sequence[Any],
        alone: Alone = select_alone,
    ) -> None:
        """Check the micro-batches of a step before it is computed or recorded."""
        self.time.start()
        self._steps += 1
        self._engine = None
        with self.time.check():
            self._late.begin()
            rare = self._steps > 8 and self._steps & (self._steps - 1)  # where users hardly ever meet
            if not (self._early and not rare) and not self.time.due():
                return
            clipping, strategies, streams = self._clipping, self._strategies, self._drawn.streams
            self._engine = Engine(parameters, self._tables, losses, clipping, strategies, streams, alone)
            with streams.kept():
                self._refuse_rows(parts)
                if parts:
                    self._look(parts, self._engine)

    def noising(self, sums: Mapping[str, Tensor]) -> None:
        """Keep the sums over all users and processes (of tables, the released rows), right before their noise."""
        if self._engine is not None:
            with self.time.check():
                for name, total in sums.items():
                    self._watch.before(name, total, whole=not self._engine.strategies.over(name))

    def noised(self, sums: Mapping[str, Tensor], late: Mapping[str, Tensor], batch: float, std: float) -> None:
        """Stop the run, before the step is released, if the sums did not get noise of this standard deviation.

        The sums are divided by the expected batch. `late` are the rows of tables that get their noise afterwards.
        """
        with self.time.check():
            for name, rows in late.items():
                self._late.read(name, rows)
                if self._engine is not None:
                    self._late.follow(name, rows, std / batch)
            for name, total in sums.items() if self._engine is not None else ():
                self._watch.after(name, total, batch, std)
            self._refuse_noise()
        self._engine = None
        self.time.stop()

    def stepping(self, optimizer: Optimizer) -> None:
        """Called before the optimizer moves parameters, and before tables whose noise comes later are updated."""
        with self.time.check():
            self._late.step(optimizer, self._strategies.held)

    def stepped(self) -> None:
        """Called after tables whose noise comes later were updated."""
        with self.time.check():
            self._late.stepped()
            self._refuse_noise()

    def _refuse_noise(self) -> None:
        found = self._watch.problem()
        if found is not None:
            raise BrokenPromise(found)

    def _refuse_rows(self, parts: Sequence[Any]) -> None:
        """Refuse a batch whose rows differ from the data of the drawn users."""
        users = self._drawn.users
        if len(set(users)) != len(users):
            raise BrokenPromise(f"of {len(users)} users that the sampler drew some are the same")
        if not users or self._drawn.at_random() or same_numbers(self._drawn.parts(users), parts):
            return
        if not self._drawn.at_random(READINGS):
            raise BrokenPromise(
                "the batch holds other numbers than the data gives for these users: change rows in the data set or "
                "collate_fn, with random, numpy or torch"
            )

    def _look(self, parts: Sequence[Any], engine: Engine) -> None:
        """Compare what some users add; refuse losses that keep something of them."""
        self.checked += 1
        before = Unchanged(self._module)
        company, users = self._company(parts)
        judge, left, meet = Judge(engine, company), max(1, self._users_left), max(map(len, company)) > 1
        self._refuse_kept(judge, users[0], before)
        self._refuse_all_lost(judge, company)
        if self._users_left > 0:
            users.sort(key=judge.has_same_loss)  # first users whose loss others have changed
        if meet and not self._compared:
            self._compared, self.uneven = True, not all(map(judge.is_even, users[:FIRST]))
        for alone in users[:TRIES]:
            found, exact = judge.problem(alone), judge.exact
            if found is not None and self._again(engine, company, alone, exact) and not self._drawn.at_random(READINGS):
                raise found
            has_gradient = 0 < norm(exact) < LARGEST  # others show little
            left, self._users_left = left - has_gradient, self._users_left - (has_gradient and meet)
            if left <= 0:
                break
        if meet and self._early:
            self._early -= self._early > 1 or self._users_left <= 0

    def _refuse_kept(self, judge: Judge, alone: Any, before: Unchanged) -> None:
        """Refuse losses that keep something of their users, in the model or anywhere else."""
        first = judge.of(alone)  # the tape's refusals come first
        judge.together  # noqa: B018  others come
        before.refuse()
        difference = norm(less(judge.recount([alone]).total, first.total))
        if difference > SAME * self._clipping.max_norm:
            raise MixedUsers(
                "losses(batch) gives one user another gradient after others: it keeps something of them; keep nothing "
                "between batches"
            )

    def _company(self, parts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return micro-batches of a few of the step's users, and each of these users alone.

        The data makes them; if it is random, they are cut from the batch. In the first steps, the users padded most
        and least come first.
        """
        draw = random.Random(secrets.randbits(128))
        if self._drawn.users and not self._drawn.random:
            some = draw.sample(list(self._drawn.users), min(FEW, len(self._drawn.users)))
            alone = {user: self._drawn.parts([user]) for user in some[: FEW if self._users_left > 0 else TRIES]}
            ordered = list(alone)
            if self._users_left > 0:
                ordered.sort(key=lambda user: sum(tensor.numel() for tensor in batch_tensors(alone[user])))
                ordered = [*ordered[:1], *ordered[:0:-1]]
            return self._drawn.parts(some), [alone[user][0] for user in ordered]
        part = draw.choice(parts)
        some = draw.sample(range(len(part)), min(FEW, len(part)))
        company = select_users(part, some)
        return [company], [select_users(company, [place]) for place in range(len(some))]

    def _refuse_all_lost(self, judge: Judge, company: Sequence[Any]) -> None:
        """Refuse losses that are never finite: all users would be left out, and the budget spent on noise."""
        count = sum(map(len, company))
        self._finite = self._finite or judge.finite() > 0
        if count > 1 and not self._finite:
            raise UserError(
                f"losses are NaN or infinite for all {count} users who were looked at before the first step: look for "
                "NaN, log(0) or overflow"
            )

    def _again(self, engine: Engine, company: Sequence[Any], alone: Any, exact: Vector) -> bool:
        """Whether the difference remains at slightly other weights; at a kink of a loss it is due to rounding."""
        rows = {name: gradient.coalesce().indices()[0] for name, gradient in exact.items() if gradient.is_sparse}
        rows |= {name: engine.parameters[name].new_zeros(0).long() for name in self._tables if name not in exact}
        for size in NUDGES:
            with perturbed_weights(engine.parameters, rows, self._padding, size):
                if Judge(engine, company).problem(alone) is None:
                    return False
        return True


class SpareTime:
    """Chooses steps to check at random, so that checks take at most `share` of the steps' time.

    The choice uses the operating system's entropy, never a seed.

    >>> always, never = SpareTime(1.0), SpareTime(0.0)
    >>> [always.due() for _ in range(3)], [never.due() for _ in range(3)]
    ([True, True, True], [False, False, False])
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.worked = 0.0  # seconds in steps
        self.spent = 0.0  # seconds in checks

    def due(self) -> bool:
        """Whether to check this step."""
        if self.share in (0, 1):
            return self.share > 0
        return self.spent <= self.share * self.worked and secrets.randbelow(SKIPPED) == 0

    def start(self) -> None:
        """Begin a step."""
        self._at, self._of_this = perf_counter(), 0.0

    @contextmanager
    def check(self) -> Iterator[None]:
        """Count the context's time as a check's."""
        begun = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - begun
            self.spent += seconds
            self._of_this += seconds

    def stop(self) -> None:
        """End a step."""
        self.worked += perf_counter() - self._at - self._of_this
