"""`python -m tests.privacy.search`: run many cases, and print every breach."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from tests.privacy.search.blame import most_by_digits
from tests.privacy.search.case import Finding, run
from tests.privacy.search.plan import Plan, plan_of


@dataclass
class Tally:
    """What a search has seen so far."""

    done: int = 0
    breaches: int = 0
    refused: int = 0
    explained: int = 0  # above the bound by what the model itself computes
    by_digits: list[Finding] = field(default_factory=list)  # of these, all that no shapes show
    largest: dict[str, float] = field(default_factory=dict)  # ratio of each precision

    def add(self, finding: Finding) -> None:
        self.done += 1
        self.breaches += finding.breach
        self.refused += bool(finding.refused)
        self.explained += finding.explained and not finding.breach
        if finding.by_digits:
            self.by_digits.append(finding)
        own = ", by the model's own rounding" if finding.explained else ""
        precision = finding.plan.precision + own
        self.largest[precision] = max(self.largest.get(precision, 0.0), finding.ratio)

    @property
    def too_many(self) -> bool:
        """Whether more cases have no digits than honest ones would: then it is not the models."""
        return len(self.by_digits) > most_by_digits(self.done)

    def __str__(self) -> str:
        ratios = ", ".join(f"{name} {ratio:.7f}" for name, ratio in sorted(self.largest.items()))
        return (
            f"{self.done:,} cases, {self.breaches} breaches, {self.refused:,} refused, {self.explained} by models' own "
            f"rounding ({len(self.by_digits)} of them since float32 holds no digit, {most_by_digits(self.done)} at "
            f"most); largest |S(D) - S(D')| / C: {ratios}"
        )


def search(plans: Iterable[Plan], minutes: float) -> Tally:
    """Run plans until time is up, and print breaches as they come."""
    tally, started = Tally(), time.monotonic()
    for plan in plans:
        finding = run(plan)
        tally.add(finding)
        if finding.breach:
            print(f"BREACH in case {plan.seed}: {finding}", flush=True)
        if minutes and time.monotonic() - started > 60 * minutes:
            break
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 where a breach was found, or too many that only a lack of digits excuses."""
    parser = argparse.ArgumentParser(prog="python -m tests.privacy.search", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many, numbered from --seed on")
    parser.add_argument("--seed", type=int, default=1, help="number of the first case")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many, whatever is left")
    parser.add_argument("--plan", default="", help="one plan as it was printed, instead of cases")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    numbers = range(options.seed, options.seed + options.cases)
    plans: Iterable[Plan] = [Plan.read_from(options.plan)] if options.plan else map(plan_of, numbers)
    tally = search(plans, options.minutes)
    for finding in tally.by_digits:
        print(f"float32 holds no digit in case {finding.plan.seed}: {finding}")
    print(tally)
    if tally.too_many:
        print(f"TOO MANY of whose gradients float32 holds no digit: {len(tally.by_digits)}")
    return 1 if tally.breaches or tally.too_many else 0


if __name__ == "__main__":
    sys.exit(main())
