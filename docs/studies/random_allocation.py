"""How much noise random allocation needs beside Poisson sampling, at the same ε, δ, steps and mean batch.

Random allocation divides the steps into rounds, and puts every user into the same number of steps of each round, drawn
anew. Poisson sampling puts a user into each step by a coin of its own. `theirs` is an upper bound by `PLD_accounting`,
of the authors of Feldman and Shenfeld (2026): `pip install PLD_accounting==2.0`. dprec trains by Poisson sampling.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any

import study
from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event
from dprec.errors import UserError
from study import Row

GRID = 0.05  # of privacy losses in their library: a finer one finds smaller bounds, and takes longer
COLUMNS = {
    "recipe": "recipe", "epsilon": "ε", "rounds": "rounds", "steps": "steps a round", "chosen": "of these a user's",
    "poisson": "σ, Poisson", "theirs": "σ, allocation", "ratio": "ratio",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """The training part of a recipe: in each of `rounds`, a user takes part in `chosen` of `steps` steps."""

    recipe: str
    users: int
    rounds: int
    steps: int
    chosen: int = 1


SETTINGS = (  # rounded to whole steps: rates 0.339, 0.280, 0.678, 0.033 and 0.0041
    Setting("movielens_dpformer", 6040, rounds=20, steps=3),
    Setting("games_dpformer_popular", 29246, rounds=7, steps=4),
    Setting("movielens_dpformer_paper", 6040, rounds=49, steps=3, chosen=2),
    Setting("criteo_adafest", 500_000, rounds=10, steps=30),
    Setting("dlrm_lazydp", 500_000, rounds=1, steps=244),
)
WHOLE = (Setting("every user in every step", 1000, rounds=4, steps=1),)  # then both are the Gaussian mechanism


def measure(asked: Namespace) -> list[Row]:
    try:
        library: Any = importlib.import_module("PLD_accounting")
    except ImportError:
        raise UserError("this study needs PLD_accounting: pip install PLD_accounting==2.0") from None
    settings, budgets = (WHOLE, (8.0,)) if asked.quick else (SETTINGS, (1.0, 8.0))
    return [_row(each, epsilon, library) for epsilon in budgets for each in settings]


def _row(setting: Setting, epsilon: float, library: Any) -> Row:
    rate, steps = setting.chosen / setting.steps, setting.rounds * setting.steps
    budget = PrivacyBudget(epsilon, 1 / setting.users)
    poisson = calibrate(budget, lambda sigma: Event("poisson_gaussian", sigma, rate), steps)
    theirs = _least(poisson, setting, epsilon, library)
    return asdict(setting) | {"epsilon": epsilon, "poisson": poisson, "theirs": theirs, "ratio": theirs / poisson}


def _least(guess: float, setting: Setting, epsilon: float, library: Any) -> float:
    """Return the smallest noise multiplier whose ε is at most `epsilon`, to 0.5 %, by bisection around a guess."""

    config = library.AllocationSchemeConfig(loss_discretization=GRID, tail_truncation=1e-4 / setting.users)

    def fits(sigma: float) -> bool:
        params = library.PrivacyParams(
            sigma=sigma,
            num_steps=setting.steps,
            num_selected=setting.chosen,
            num_epochs=setting.rounds,
            delta=1 / setting.users,
        )
        return bool(library.gaussian_allocation_epsilon_configurable(params=params, config=config) <= epsilon)

    low, high = 0.5 * guess, guess
    while not fits(high):
        low, high = high, 1.3 * high
    while high > 1.005 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
