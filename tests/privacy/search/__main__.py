"""`python -m tests.privacy.search`: run many cases, and keep the largest ratios."""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from tests.privacy.search.blame import most_by_digits
from tests.privacy.search.case import Finding, run
from tests.privacy.search.plan import Plan, plan_of
from tests.privacy.search.shrink import shrunk

KEPT = 100  # of the largest ratios
SHRUNK = 5  # breaches of which the simplest plan is looked for


@dataclass
class Tally:
    """What a search has seen so far."""

    cases: int
    minutes: float
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    breaches: int = 0
    explained: int = 0  # above the bound by what the model itself computes
    by_digits: list[Finding] = field(default_factory=list)  # of these, all that no shapes show
    coarse: int = 0  # above it in bfloat16, for which no figure is promised
    largest: dict[str, Finding] = field(default_factory=dict)  # of each precision
    refused: Counter[str] = field(default_factory=Counter)
    top: list[tuple[float, int, Finding]] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.done += 1
        self.breaches += finding.breach
        self.explained += finding.explained and not finding.breach
        if finding.by_digits:
            self.by_digits.append(finding)
        self.coarse += finding.above and finding.coarse and not finding.explained and not finding.breach
        if finding.refused:
            self.refused[finding.refused.split(":")[0][:80]] += 1
        own = ", by the model's digits" if finding.by_digits else ", by the model's own rounding"
        precision = finding.plan.precision + (own if finding.explained else "")
        if precision not in self.largest or finding.ratio > self.largest[precision].ratio:
            self.largest[precision] = finding
        heapq.heappush(self.top, (finding.ratio, -self.done, finding))
        if len(self.top) > KEPT:
            heapq.heappop(self.top)

    @property
    def too_many(self) -> bool:
        """Whether more cases have no digits than honest ones would: then it is not the models."""
        return len(self.by_digits) > most_by_digits(self.done)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def over(self) -> bool:
        return bool(self.minutes) and self.seconds > 60 * self.minutes

    def __str__(self) -> str:
        rate = self.done / max(self.seconds, 1e-9)
        left = (self.cases - self.done) / max(rate, 1e-9) / 60
        left = max(0.0, min(left, self.minutes - self.seconds / 60) if self.minutes else left)
        ratios = ", ".join(f"{name} {finding.ratio:.7f}" for name, finding in sorted(self.largest.items()))
        return (
            f"{self.done:,} cases, {self.breaches} breaches, {self.explained} by models' own rounding "
            f"({len(self.by_digits)} of them since float32 holds no digit, {most_by_digits(self.done)} at most), "
            f"{self.coarse} above the float32 bound in bfloat16, "
            f"{rate:.1f} a second, {left:.0f} min left; "
            f"largest |S(D) - S(D')| / C: {ratios}"
        )

    def write(self, path: Path) -> None:
        largest = [finding for _, _, finding in sorted(self.top, reverse=True, key=lambda entry: entry[:2])]
        with path.open("w") as lines:
            for finding in [*largest, *(each for each in self.by_digits if each not in largest)]:
                lines.write(json.dumps(asdict(finding) | {"by_digits": finding.by_digits}) + "\n")


def search(plans: Iterable[Plan], tally: Tally, every: float) -> None:
    """Run plans until time is up, and tell of breaches as they come."""
    told = tally.started
    for plan in plans:
        finding = run(plan)
        tally.add(finding)
        if finding.breach:
            print(f"BREACH in case {plan.seed}: {finding}", flush=True)
            if tally.breaches <= SHRUNK and (simplest := shrunk(finding, run)) is not finding:
                print(f"  simplest: {simplest}", flush=True)
        if time.monotonic() - told > every:
            told = time.monotonic()
            print(tally, flush=True)
        if tally.over:
            break


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 where a breach was found, or too many that only a lack of digits excuses."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    numbers = range(options.seed, options.seed + options.cases)
    plans: Iterable[Plan] = [Plan.read_from(options.plan)] if options.plan else map(plan_of, numbers)
    tally = Tally(1 if options.plan else options.cases, options.minutes)
    search(plans, tally, options.every)
    print(tally)
    print(f"{sum(tally.refused.values()):,} refused: {dict(tally.refused.most_common(5))}")
    for precision, finding in sorted(tally.largest.items()):
        print(f"largest in {precision}: {finding}")
    for finding in tally.by_digits:
        print(f"float32 holds no digit in case {finding.plan.seed}: {finding}")
    if tally.too_many:
        print(f"TOO MANY of whose gradients float32 holds no digit: {len(tally.by_digits)}")
    if options.out:
        tally.write(Path(options.out))
    return 1 if tally.breaches or tally.too_many else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.privacy.search", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many, numbered from --seed on")
    parser.add_argument("--seed", type=int, default=1, help="number of the first case")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many, whatever is left")
    parser.add_argument(
        "--out", default="", help=f"a JSON lines file of the {KEPT} largest ratios, and of all whose digits are lost"
    )
    parser.add_argument("--plan", default="", help="one plan as it was printed, instead of cases")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between lines of progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
