"""What a case is made of: plain values, drawn from one integer, that can be printed, edited and run again."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.privacy.search.extremes import EXTREMES
from tests.privacy.search.layers import LAYERS
from tests.privacy.search.readouts import READOUTS
from tests.privacy.search.users import FORMS

READS = ("embedding", "embedding", "embedding", "index", "index_select", "features", "features", "both")
STRATEGIES = ("none",) * 12 + ("adafest", "adafest", "fest", "exponential", "lazydp", "dense")
PRECISIONS = ("float32",) * 7 + ("bf16-mixed", "bf16-mixed", "bf16-true")
LOOKED_UP = ("negatives", "signed", "square", "dot")  # losses that leave a table to look-ups, as strategies ask
ASCENTS = ("none",) * 16 + ("cancel", "cancel", "climb")
TRAINED = ("all", "all", "all", "some", "two", "one")
ALIKE = ("alike", "alike but one")
SURE = 40_000  # seeds from here on also make cases of sure models; those before keep the case that they stand for


@dataclass(frozen=True)
class Plan:
    """One case. The random numbers behind it follow from `seed` and the field they are for."""

    seed: int
    dim: int = 4
    items: int = 9  # rows of the item table, of which row 0 is padding
    users: int = 3
    length: int = 4  # of the longest history
    form: str = "different"
    read: str = "embedding"
    layers: tuple[str, ...] = ()
    readout: str = "signed"
    extremes: tuple[str, ...] = ()
    mode: str = "auto-v"
    max_norm: float = 1.0
    precision: str = "float32"
    strategy: str = "none"
    cut: int = 0  # users of a micro-batch; 0: all of them
    other_cut: int = 0  # the same without the user
    ascent: str = "none"
    trained: str = "all"  # how many of the parameters; what is left may cancel
    room: int = 0  # numbers of users' gradients that the engine may build at once; 0: as many as it likes

    def rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed} {purpose}")

    @property
    def calm(self) -> bool:
        """Whether nothing in it is at the edge of float32, so that the engine must agree with plain autograd."""
        return self.precision == "float32" and not self.extremes and self.ascent == "none" and self.strategy == "none"

    def but(self, **changes: Any) -> Plan:
        return replace(self, **changes)

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read_from(cls, text: str) -> Plan:
        """Return the plan that was printed."""
        given = json.loads(text)
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def plan_of(seed: int) -> Plan:
    """Draw a plan.

    >>> plan_of(7) == plan_of(7), Plan.read_from(str(plan_of(7))) == plan_of(7)
    (True, True)
    """
    rng = random.Random(seed)
    extremes = (
        () if rng.random() < 0.2 else tuple(rng.sample(sorted(set(EXTREMES) - {"sure"}), rng.choice((1, 1, 2, 3))))
    )
    strategy = rng.choice(STRATEGIES)
    plan = Plan(
        seed=seed,
        dim=rng.choice((2, 3, 4, 6, 8, 16)),
        items=rng.choice((3, 6, 11, 24)),
        form=rng.choice(sorted(FORMS)),
        read=rng.choice(READS),
        layers=tuple(rng.choice(sorted(LAYERS)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))),
        readout=rng.choice(LOOKED_UP if strategy != "none" else tuple(sorted(READOUTS))),
        extremes=extremes,
        mode=rng.choice(("auto-v", "auto-v", "auto-s", "flat")),
        max_norm=rng.choice((1.0, 1.0, 0.1, 20.0)),
        precision="float32" if strategy != "none" else rng.choice(PRECISIONS),
        strategy=strategy,
        trained=rng.choice(TRAINED),
        room=rng.choice((0, 0, 0, 16, 100)),
    )
    plan = _sized(_suiting(plan, rng), rng)
    return _sure(plan) if seed >= SURE and seed % 8 == 0 and strategy == "none" else plan


def _sure(plan: Plan) -> Plan:
    """Return the plan with a softmax over many items, of which the model is sure; mostly of a few users alike."""
    rng = plan.rng("sure")
    form = rng.choice((*ALIKE, plan.form))
    users = rng.choice((2, 3, 4, 5, 9, 17))  # each is a number of rows that matrices are multiplied by in another way
    return plan.but(
        extremes=(*plan.extremes, "sure"),
        readout=rng.choice(("catalogue", "catalogue", "untied", "spelled")),
        dim=rng.choice((16, 32, 33, 64)),
        items=rng.choice((24, 200)),
        form=form,
        users=users if form in ALIKE else plan.users,
        length=rng.choice((1, 1, plan.length)),
        cut=0,
        other_cut=0,
        ascent="none",
        room=0,
    )


def _suiting(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with what its extremes need to be any."""
    free = plan.strategy == "none"
    if "perpendicular" in plan.extremes:
        plan = plan.but(read="features", layers=("low rank", *plan.layers[:1]))
    if "pairs" in plan.extremes:
        plan = plan.but(readout="signed", form="equal")
    if "rows alike" in plan.extremes and rng.random() < 0.6:
        plan = plan.but(readout="negatives", form=rng.choice(ALIKE))
    if "one direction" in plan.extremes and free and rng.random() < 0.5:
        plan = plan.but(readout="catalogue", form=rng.choice(("different", "one long")))
    if "nearly alike" in plan.extremes and rng.random() < 0.5:
        plan = plan.but(form=rng.choice(ALIKE))
    return plan


def _sized(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with as many users as its form is about, and its micro-batches."""
    if plan.form in ALIKE:
        users = rng.choice((20, 100, 300, 1000)) if rng.random() < 0.97 else 4096
        length = rng.choice((1, 2, 3)) if users < 300 else rng.choice((1, 1, 2))
        cuts: tuple[int, ...] = (0, 0, 0, users // 2)
    else:
        users = rng.choice((1, 2, 3, 4, 6, 9, 13))
        length = rng.choice((8, 20, 60)) if plan.form == "one long" else rng.choice((1, 2, 3, 5, 8))
        cuts = (0, 0, 0, 0, max(1, users // 3), max(1, users // 2))
    if "pairs" in plan.extremes:
        length = max(2, length)
    alike = plan.form in ALIKE
    return plan.but(
        users=users,
        length=length,
        cut=rng.choice(cuts),
        other_cut=rng.choice(cuts),
        ascent="none" if alike else rng.choice(ASCENTS),
        room=0 if alike else plan.room,  # a thousand users in pieces of one take seconds
    )
