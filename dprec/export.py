"""Export a trained run for other programs: ``python -m dprec.export RUN --format onnx --out FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import EXPORT
from dprec.errors import UserError
from dprec.lightning import leave_out

if TYPE_CHECKING:
    from rich.console import Console


def export(line: CommandLine, console: Console) -> None:
    # Imported here, so that help does not wait for torch.
    from dprec.serving.exported import export_run
    from dprec.serving.served import load

    kind, out, trusted = line.take("format") or "onnx", line.take("out"), line.take_list("trust")
    line.refuse_overrides()
    run = line.only("RUN")
    if out is None:
        raise UserError("an export needs a folder: add --out FOLDER")
    file = export_run(load(run, trusted), kind, Path(out))
    console.print(f"{file}; {file.parent / 'interface.json'} says what goes in and out", soft_wrap=True)


main = Command(export, EXPORT, positionals="RUN", own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
