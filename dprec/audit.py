"""Test whether a model keeps its guarantee: ``python -m dprec.audit RECIPE [--canaries LIST] [--key value]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import AUDIT
from dprec.errors import Breach, UserError

if TYPE_CHECKING:
    from rich.console import Console


def audit(line: CommandLine, console: Console) -> None:
    # Imported here, so that help does not wait for torch.
    from dprec.auditing import picture, report
    from dprec.auditing.audit import Audit
    from dprec.auditing.systems import asked_canaries, asked_systems
    from dprec.reporting.figure import pyplot

    if not line.recipes:
        raise UserError("no recipe given: python -m dprec.audit quickstart")
    canaries = asked_canaries(line)
    minutes = line.take_number("minutes") or 8
    default = Path("runs") / ("audit-" + "+".join(Path(path).stem for path in line.recipes))
    run = Audit(Path(line.take("out") or default), canaries, minutes)
    found = run.run(line, asked_systems(line), console)
    report.show(found, console)
    console.print(f"audit: {run.folder / 'audit.json'}", soft_wrap=True)
    try:
        pyplot()
    except UserError:
        console.print("no picture: it needs matplotlib")
    else:
        picture.exposures(found["systems"], canaries.references, run.folder / "exposure.png")
    broken = [f"{row['system']}: {breach}" for row in found["systems"] for breach in row["breaches"]]
    if broken:
        raise Breach(f"the guarantee is not kept: {'; '.join(broken)}")


main = Command(audit, AUDIT)


if __name__ == "__main__":
    sys.exit(main())
