"""Test whether a model keeps its guarantee: ``python -m dprec.audit RECIPE [--canaries LIST] [--key value]``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, NonNegativeInt, PositiveInt, add_recipes
from dprec.cli.command import Command
from dprec.errors import Breach, UserError


def options(parser: ArgumentParser) -> None:
    add_recipes(parser)
    parser.add_argument("--canaries", default="1,2,3,4,5,10,20,50,100", help="numbers of users who hold a secret")
    parser.add_argument("--each", type=PositiveInt, default=50, help="secrets for each number of users")
    parser.add_argument("--length", type=PositiveInt, default=20, help="random items before a canary's random target")
    parser.add_argument("--references", type=PositiveInt, default=16384, help="sequences that no user holds, for ranks")
    parser.add_argument("--coins", type=NonNegativeInt, default=1000, help="canaries of each kind; half are planted")
    parser.add_argument("--seed_of_canaries", type=NonNegativeInt, default=0, help="another seed draws other canaries")
    parser.add_argument("--noise", help="noise multipliers to audit, without an ε; default 0.01,0.001; or none")
    parser.add_argument("--strategies", help="run each --noise with these, too: EANA,LazyDP,AdaFEST")
    parser.add_argument("--beside", action="append", default=[], help="one more system: 'name = --key value'")
    parser.add_argument("--minutes", type=PositiveInt, default=8, help="for all systems together; then runs stop early")
    parser.add_argument("--out", help="folder of the audit; default runs/audit-<recipe>")


def audit(line: CommandLine, console: Console) -> None:
    """Test whether training keeps its guarantee.

      dprec audit recipes/quickstart.yaml --noise none --beside 'epsilon 1 = --privacy.epsilon 1'

    Adds artificial users with random items, trains, and measures what the model reveals about them: how well it
    remembers them (exposure), and a lower bound on ε. It also trains the recipe without privacy, to compare. If a
    guarantee is not kept, the exit code is 3. To continue a stopped audit, run the command again. Any --key value of
    dprec fit overrides the recipe.
    """
    from dprec.auditing import report
    from dprec.auditing.audit import Audit
    from dprec.auditing.systems import asked_canaries, asked_systems
    from dprec.reporting.figure import pyplot

    canaries = asked_canaries(line)
    default = Path("runs") / ("audit-" + "+".join(Path(path).stem for path in line.recipes))
    run = Audit(Path(line.options.out or default), canaries, line.options.minutes)
    found = run.run(line, asked_systems(line), console)
    report.show(found, console)
    console.print(f"audit: {run.folder / 'audit.json'}", soft_wrap=True)
    try:
        pyplot()
    except UserError:
        console.print("no picture: it needs matplotlib")
    else:
        report.draw_exposures(found["systems"], canaries.references, run.folder / "exposure.png")
    broken = [f"{row['system']}: {breach}" for row in found["systems"] for breach in row["breaches"]]
    if broken:
        raise Breach(f"the guarantee is not kept: {'; '.join(broken)}")


main = Command(audit, options, settings=True)


if __name__ == "__main__":
    sys.exit(main())
