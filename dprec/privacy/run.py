"""Settings, plan, ledger and guarantee of a private run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.chain import Ceiling, Spent, now, refuse_other_epsilon, together
from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan, refuse_change, refuse_part, refuse_unrecorded, run_settings
from dprec.accounting.private_catalogue import PrivateCatalogue
from dprec.accounting.release import Release
from dprec.accounting.sampling import Sampler, Sampling
from dprec.errors import UserError, refuse_other_kinds
from dprec.gradients.clipping import Clipping
from dprec.noise.gaussian import GaussianNoise
from dprec.privacy.guarantee import COARSE_GRADIENTS, UNEVEN_GRADIENTS, guarantee, neighbours_of
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies


class PrivateRun:
    """A private run's budget, what it has spent, and its guarantee. `Privacy` describes the arguments."""

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        clipping: Literal["auto-v", "auto-s", "flat"] = "auto-v",
        max_norm: float = 1.0,
        noise_seed: int | None = None,
        sparsity: Strategy | list[Strategy] | None = None,
        verify: float = 0.02,
        budget_over_time: dict[str, float] | None = None,
    ) -> None:
        refuse_other_kinds(PrivateRun.__init__, locals())
        super().__init__()
        self.strategies = TableStrategies(_strategies(sparsity))
        if epsilon is None and noise_multiplier is None and budget_over_time is None:
            raise UserError(
                "privacy has neither epsilon nor noise_multiplier: give one, or leave the privacy block out"
            )
        self._budget = None if budget_over_time is None else budget_in_days(budget_over_time)
        if noise_multiplier is not None and not 0 <= noise_multiplier < float("inf"):
            raise UserError(f"privacy.noise_multiplier is {noise_multiplier}: give a finite number from 0 up")
        bounded = "epsilon" if epsilon is not None else "budget_over_time" if self._budget else None
        if bounded and self.strategies.broken:
            raise UserError(f"privacy.{bounded} is given, but {self.strategies.broken}: give noise_multiplier alone")
        if not 0 <= verify <= 1:
            raise UserError(f"privacy.verify is {verify}: give a share of the time from 0 to 1")
        # Made here because it refuses an invalid ε or δ.
        PrivacyBudget(1.0 if epsilon is None else epsilon, 0.5 if delta is None else delta)
        self.epsilon = epsilon
        self.clipping = Clipping(clipping, max_norm)
        self.noise = GaussianNoise(noise_seed)
        self.ledger = Ledger()
        self.verify = verify
        self.steps = 0
        self._given: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "clipping": clipping,
            "max_norm": max_norm,
            "sparsity": self.strategies.settings(),
            "budget_over_time": self._budget,
        }
        self.began = now()  # public
        self.earlier: list[Spent] = []  # what the runs that this one continues have spent
        self._bought: tuple[Event, ...] = ()  # events on record before the plan: those of a private catalogue
        self._bought_now = False  # by this process
        self._plan: Plan | None = None
        self._length: int | None = None  # of the run that was planned here; None for a checkpoint's plan
        self._allowed = 0
        self._resumed: dict[str, Any] | None = None
        self.coarse = False  # whether gradients are bfloat16 somewhere, so that no bound on their rounding holds
        self.uneven = False  # whether a user's numbers were seen to depend on who else is in the batch
        self._first = True  # no step was taken in this process yet

    @property
    def planned(self) -> Plan:
        """What the run will spend."""
        if self._plan is None:
            raise UserError("no training has begun, so δ and the noise are not known: ask after the first step")
        return self._plan

    @property
    def delta(self) -> float:
        return self.planned.delta

    @property
    def sigma(self) -> float:
        """The noise multiplier in force."""
        return self.planned.sigma

    @property
    def sampling(self) -> Sampling:
        return self.planned.sampling

    @property
    def joint_ledger(self) -> Ledger:
        """All events so far, of this run and of the runs that it continues."""
        return together(self.earlier).after_all(self.ledger.events)

    @property
    def spent(self) -> float:
        """ε of all events so far: the figure that is reported."""
        return math.inf if self.strategies.broken else self.joint_ledger.epsilon(self.delta)

    @property
    def spent_at_most(self) -> float:
        """A slightly larger ε, computed ten times as fast, to show progress."""
        return math.inf if self.strategies.broken else self.joint_ledger.epsilon(self.delta, COARSE_GRID)

    @property
    def limit(self) -> float | None:
        """The bound on `spent`: the ceiling of all runs together, or the budget of a run that continues no other."""
        if self._budget is not None:
            return self._budget["epsilon"]
        return None if self.earlier else self.epsilon

    @property
    def repeatable(self) -> bool:
        """Whether the noise or the batches follow from a known seed, so that the run is not private."""
        return self.noise.seeded or self.sampling.seeded

    def private_catalogue(self, users: int, share: float) -> PrivateCatalogue:
        """Return the private choice of a catalogue from this many users' items, for a share of the budget."""
        if self.epsilon is None:
            raise UserError("a private catalogue is paid for with a share of privacy.epsilon, so give privacy.epsilon")
        delta = self._given["delta"]
        return PrivateCatalogue.of(PrivacyBudget(self.epsilon, 1 / max(2, users) if delta is None else delta), share)

    def continue_from(self, promise: Mapping[str, Any], run: str = "the earlier run") -> None:
        """Continue an earlier run: from now on, guarantees cover both runs and all runs before them.

        A person may be in the data of each run, so all their events compose. Call this before training begins.

        Args:
            promise: what the earlier run's `promise()` returned, or the content of its privacy.json.
            run: the earlier run's name in messages.
        """
        earlier = Spent.all_of(promise, run)
        refuse_other_epsilon(promise, earlier)
        if self._plan is not None:
            raise UserError("continue_from comes before training begins: call it first")
        if self.began <= (before := earlier[-1].began or ""):
            raise UserError(f"{run} began at {before}, which is not before now: continue the newest run, set the clock")
        self.earlier = earlier

    @property
    def chain(self) -> dict[str, Any]:
        """JSON-able: this run's public facts, and what the runs that it continues have spent."""
        earlier = [spent.state_dict() for spent in self.earlier]
        return {"began": self.began, "units": self.sampling.users, **({"earlier": earlier} if earlier else {})}

    def restore_chain(self, kept: Mapping[str, Any]) -> None:
        """Restore when a resumed run began, and which runs it continues."""
        earlier = [*map(Spent.from_state, kept.get("earlier", ()))]
        if self.earlier and [one.began for one in self.earlier] != [one.began for one in earlier]:
            raise UserError("the checkpoint's run goes on from other runs: leave out continue_from, or start a new run")
        self.began, self.earlier = kept.get("began", self.began), earlier

    def begin_with(self, events: Sequence[Event], on_record: bool = False) -> None:
        """Take events from before the plan, and record them, unless a checkpoint's ledger has them (`on_record`)."""
        self._bought, self._bought_now = tuple(events), bool(events) and not on_record
        for event in () if on_record else events:
            self.ledger.record(event)

    def plan(self, sampler: Sampler | None, steps: int, releases: Sequence[Release] = ()) -> None:
        """Fix δ and σ for a run of these releases and this many steps; the same call again changes nothing."""
        sampling, old = Sampling.of(sampler), self._plan
        releases = (*self.strategies.releases(len(sampling.periods)), *releases)
        same = old is not None and (old.sampling, tuple(old.releases)) == (sampling, tuple(releases))
        if same and (self.steps or self._length in (None, steps)):
            return
        delta, sigma = self._given["delta"], self._given["noise_multiplier"]
        if old is not None and self.steps:  # noise was drawn with this σ
            delta, sigma = old.delta, old.sigma
        self._length = steps
        neighbours = neighbours_of(sampling)
        if self.earlier and not neighbours.startswith(before := self.earlier[-1].neighbours):
            raise UserError(f"the earlier runs are about {before}, this one about {neighbours}: keep unit and sampling")
        earlier, ceiling = together(self.earlier).events, self._ceiling()
        self._plan = Plan.of(
            sampling, steps, self.epsilon, delta, sigma, releases, self._bought, earlier=earlier, ceiling=ceiling
        )

    def _ceiling(self) -> Ceiling | None:
        if self._budget is None:
            return None
        return Ceiling.of(self._budget, (self.earlier[0].began if self.earlier else None) or self.began, self.began)

    def epsilon_after(self, steps: int) -> float:
        """ε of a whole run of this many steps, as planned, including the model's releases before them."""
        return math.inf if self.strategies.broken else self.planned.epsilon_after(steps)

    def guarantee(self, assumptions: Sequence[str] = ()) -> str:
        """Return the sentence that states the guarantee, its assumptions and what it does not cover."""
        if self.strategies.broken:
            return f"not private: {self.strategies.broken}"
        by_strategies = self.strategies.phrase(self.planned.sigma)
        rounded = (COARSE_GRADIENTS if self.coarse else "") + (UNEVEN_GRADIENTS if self.uneven else "")
        return guarantee(
            self.planned,
            self.ledger,
            self.clipping,
            self.steps,
            self.repeatable,
            assumptions,
            by_strategies,
            rounded,
            self.earlier,
        )

    @property
    def spending(self) -> dict[str, float]:
        """ε of all events so far, δ and σ."""
        return {"epsilon": self.spent, "delta": self.delta, "noise_multiplier": self.sigma}

    def promise(self, assumptions: Sequence[str] = ()) -> dict[str, Any]:
        """Return the guarantee in words and in numbers, with the ledger it follows from."""
        stated = {"guarantee": self.guarantee(assumptions), **self.spending, "assumed_public": [*assumptions]}
        return stated | self.chain | self.ledger.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.state_dict(),
            "steps": self.steps,
            "coarse": self.coarse,
            "uneven": self.uneven,
            "settings": run_settings(self._given, self.planned, self.noise.seeded),
            "sparsity": self.strategies.state_dict(),
            "chain": self.chain,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what a checkpoint's run has spent; refuse a run that this one may not continue."""
        refuse_part(state_dict)
        old = state_dict["settings"]
        refuse_change(old, {**self._given, "noise_seeded": self.noise.seeded})
        if self._bought_now:  # the loaded ledger does not contain it
            raise UserError(
                "this process has chosen the items of data.catalogue anew, and the checkpoint's run paid for its own "
                "choice alone: keep that one, settle_catalogue(data, privacy, torch.load(CHECKPOINT))"
            )
        self._resumed = old
        self.restore_chain(state_dict.get("chain", {}))
        self.strategies.load_state_dict(state_dict.get("sparsity", []))
        self.ledger.load_state_dict(state_dict["ledger"])
        self.steps = int(state_dict["steps"])
        self.coarse = bool(state_dict.get("coarse", False))
        self.uneven = bool(state_dict.get("uneven", False))
        sampling = Sampling.from_settings(old) if self._plan is None else self._plan.sampling
        releases = {} if self._plan is None else self._plan.releases
        self._plan = Plan(
            sampling,
            self.epsilon,
            old["delta"],
            old["sigma"],
            releases,
            self._bought,
            together(self.earlier).events,
            self._ceiling(),
        )
        refuse_unrecorded(self.steps, self.ledger, sampling)

    def start(self, taken: int, total: int) -> int:
        """Return how many steps the budget still allows, of a run of `total` steps that has taken `taken` of them."""
        if self.steps and (self._resumed is None or not taken):
            raise UserError(
                f"this {type(self).__name__} has {self.steps} steps of another fit on record: make a new one for each "
                "fit, or continue with fit(ckpt_path=…)"
            )
        if self._resumed is None and taken:
            raise UserError(f"the checkpoint's first {taken} steps were not private: start a new run")
        if self._resumed is not None:
            refuse_change(self._resumed, self.planned.settings())
        if self.steps != taken:
            raise UserError(
                f"the model has taken {taken} steps, its ledger {self.steps}: load a checkpoint that is complete"
            )
        self._first = True
        self._allowed = self.planned.steps_left(self.ledger, self.steps, total - self.steps)
        if self._allowed == 0 and self.steps == 0:
            raise self.planned.too_dear()
        return self._allowed

    def charge_step(self) -> None:
        """Record the coming step in the ledger, count it, and set the key of its noise.

        It is recorded first, so that a crash may over-count but never under-count.
        """
        if self._allowed == 0:
            raise UserError(f"the budget epsilon={self.epsilon} is spent: end training here, or give more in a new run")
        self._allowed -= 1
        # A shuffled pass is one event; a resumed run shuffles again, so its first step starts another.
        if self.steps % self.sampling.steps_per_event == 0 or self._first:
            self.ledger.record(self.sampling.event(self.sigma, self.steps))
        self._first = False
        self.noise.at(self.steps)
        self.steps += 1


def budget_in_days(given: Mapping[str, float]) -> dict[str, float]:
    """Return privacy.budget_over_time as numbers; refuse another form."""
    if set(given) != {"epsilon", "days"} or not all(0 < value < math.inf for value in given.values()):
        raise UserError(f"privacy.budget_over_time is {dict(given)}: give it an epsilon and days, such as 8 and 365")
    return {name: float(value) for name, value in given.items()}


def _strategies(given: Any) -> list[Strategy]:
    """Return a strategy, or several, as a list; refuse names and classes in their place."""
    each = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for one in each:
        if not isinstance(one, Strategy):
            name = f"the class {one.__name__}" if isinstance(one, type) else repr(one)
            raise UserError(f"sparsity is {name}: give a strategy with its settings, such as dprec.sparsity.AdaFEST()")
    return each
