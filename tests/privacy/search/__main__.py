"""`python -m tests.privacy.search`: run many cases, and print every breach."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

import torch

from tests.privacy.search.case import run
from tests.privacy.search.plan import Plan, plan_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 where a breach was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.privacy.search", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many, numbered from --seed on")
    parser.add_argument("--seed", type=int, default=1, help="number of the first case")
    parser.add_argument("--plan", default="", help="one plan as it was printed, instead of cases")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    numbers = range(options.seed, options.seed + options.cases)
    plans: Iterable[Plan] = [Plan.read_from(options.plan)] if options.plan else map(plan_of, numbers)
    findings = []
    for finding in map(run, plans):
        findings.append(finding)
        if finding.breach:
            print(f"BREACH in case {finding.plan.seed}: {finding}", flush=True)
    breaches, refused = (sum(map(bool, each)) for each in zip(*((f.breach, f.refused) for f in findings), strict=True))
    largest = max((f.ratio for f in findings), default=0.0)
    print(
        f"{len(findings):,} cases, {breaches} breaches, {refused:,} refused; largest |S(D) - S(D')| / C: {largest:.7f}"
    )
    return int(breaches > 0)


if __name__ == "__main__":
    sys.exit(main())
