"""The sentence that says what a result guarantees, and the checks of a budget."""

from __future__ import annotations

import math
from numbers import Real

from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.figures import round_up
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError

REPEATABLE = "not private: the noise comes from a fixed seed, and anyone who knows the seed can remove it"


def refuse_word(name: str, value: object) -> None:
    """Refuse what is no number."""
    if not isinstance(value, Real):
        raise UserError(f"{name} is {value!r}: give a number")


def check_budget(epsilon: float, delta: float, pure: bool = True) -> None:
    """Refuse an ε or δ that promises nothing; δ = 0 is pure privacy, if a mechanism offers it."""
    refuse_word("epsilon", epsilon)
    refuse_word("delta", delta)
    if not 0 < epsilon < math.inf:
        raise UserError(f"epsilon is {epsilon}: give a finite number above 0, usually 0.1 to 10")
    if not (0 < delta < 1 or (pure and delta == 0)):
        least = "0 for pure privacy, or a number" if pure else "a number above 0 and"
        raise UserError(f"delta is {delta}: give {least} below 1; less than 1 / records is usual")


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise, in units of the sensitivity, that makes one Gaussian release (ε, δ)-private.

    >>> round(gaussian_multiplier(1.0, 1e-6), 3)  # the classical formula asks for 5.299
    4.225
    """
    return calibrate(PrivacyBudget(epsilon, delta), lambda sigma: Event("gaussian", sigma), steps=1)


def promise(what: str, ledger: Ledger, delta: float, records: int, seed: int | None) -> str:
    """Return the sentence: what holds, for which neighbours, by which mechanism, and what it does not cover."""
    if seed is not None:
        return REPEATABLE
    if not ledger.events:
        return "(0, 0)-differential privacy: the result does not depend on the data"
    return (
        f"({round_up(ledger.epsilon(delta))}, {round_up(delta)})-differential privacy per record, where neighbouring "
        f"data sets differ by replacing one record, for what is returned: {what}; assumed public: the number of "
        f"records ({records:,}), the number of columns, and every argument but the data; not covered: other results "
        "from the same records, which spend their own ε and δ, people with several records, metrics, arguments that "
        "were chosen by such metrics, and errors that stop a run"
    )
