"""Does the model keep what the guarantee promises? ``python -m dprec.audit RECIPE [--canaries LIST] [--key value]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError

AUDIT = """\
usage: python -m dprec.audit RECIPE [RECIPE ...] [--key value ...]

Plants artificial users with random items, trains, and looks at what can be told of them afterwards: how far
a model remembers them (exposure), and an ε that the run cannot be below. Beside the recipe it trains the same
without privacy. A promise that is not kept ends the command with exit code 2.

  --canaries LIST      users who hold a secret (1,2,3,4,5,10,20,50,100)
  --each N             secrets of each (50)
  --length N           random items of a canary, before its random target (20)
  --references N       sequences nobody holds, for ranks (16384)
  --coins N            canaries put in or left out by a coin, for ε: sequences, and gradients (1000)
  --seed_of_canaries N
  --noise LIST         also with these noise multipliers and no budget (0.01,0.001; none where the model has releases)
  --strategies LIST    each noise also as these of dprec.sparsity place it, such as EANA,LazyDP,AdaFEST
  --beside TEXT        also the recipe with other overrides: 'name = --key value'; may be repeated
  --minutes N          in all; training that has no time left stops early and says so (8)
  --out DIR            folder of the audit; default runs/audit-<recipe>. The same command goes on where it stopped.
  --key value          any override of dprec.fit

examples:
  python -m dprec.audit recipes/quickstart.yaml
  python -m dprec.audit recipes/quickstart.yaml --noise none --beside 'epsilon 1 = --privacy.epsilon 1'
"""


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(audit, argv)


def audit(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help"])
    if "help" in line.switches or not argv:
        print(AUDIT)
        return
    # Only now, so that help does not wait for torch.
    from dprec.auditing import picture, report
    from dprec.auditing.audit import Audit
    from dprec.auditing.systems import asked_canaries, asked_systems
    from dprec.benchmarks.figure import pyplot

    if not line.recipes:
        raise UserError("no recipe given: python -m dprec.audit recipes/quickstart.yaml")
    canaries = asked_canaries(line)
    minutes = line.take_number("minutes") or 8
    default = Path("runs") / ("audit-" + "+".join(Path(path).stem for path in line.recipes))
    run = Audit(Path(line.take("out") or default), canaries, minutes)
    found = run.run(line, asked_systems(line), console)
    report.show(found, console)
    console.print(f"audit: {run.folder / 'audit.json'}", soft_wrap=True, highlight=False)
    try:
        pyplot()
    except UserError:
        console.print("no picture: it needs matplotlib", highlight=False)
    else:
        picture.exposures(found["systems"], canaries.references, run.folder / "exposure.png")
    broken = [f"{row['system']}: {breach}" for row in found["systems"] for breach in row["breaches"]]
    if broken:
        raise UserError(f"the guarantee is not kept: {'; '.join(broken)}")


if __name__ == "__main__":
    sys.exit(main())
