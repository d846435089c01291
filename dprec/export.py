"""Export a trained run for other programs: ``python -m dprec.export RUN --format onnx --out FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, add_run, listed
from dprec.cli.command import Command
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--out", help="a folder that does not exist yet")
    parser.add_argument("--format", default="onnx", help="onnx, torch (for torch.export.load) or safetensors (weights)")


def export(line: CommandLine, console: Console) -> None:
    """Write a folder with a trained model for other programs.

      dprec export runs/mine --format torch --out exported

    It holds the model of a recommender or of clicks, its inputs and outputs in interface.json, and the guarantee. A
    recommender also has items.json, with the raw id of each item number. onnx and safetensors need
    pip install 'dprec[onnx]' or 'dprec[safetensors]'.
    """
    from dprec.serving.exported import export_run
    from dprec.serving.served import load

    given = line.options
    out = given.out
    if out is None:
        raise UserError("an export needs a folder: add --out FOLDER")
    file = export_run(load(given.run, listed(given.trust)), given.format, Path(out))
    console.print(f"{file}; {file.parent / 'interface.json'} says what goes in and out", soft_wrap=True)


main = Command(export, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
