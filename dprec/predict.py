"""Predict classes of texts, and clicks: ``python -m dprec.predict RUN --text "..."``, or ``--log LOG --out FILE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.cli.usage import PREDICT
from dprec.data.formats.format import lines_in
from dprec.errors import UserError
from dprec.lightning import leave_out

if TYPE_CHECKING:
    from rich.console import Console


def predict(line: CommandLine, console: Console) -> None:
    text, pair, file, trusted = line.take("text"), line.take("pair"), line.take("file"), line.take_list("trust")
    log, out, keep = line.take("log"), line.take("out"), line.take("keep")
    line.refuse_overrides()
    if [text, file, log].count(None) != 2 or (pair is not None and text is None):
        raise UserError('give --text "...", with --pair "..." for pairs, --file texts.txt, or --log clicks.csv')
    if log is None and (out is not None or keep is not None):
        raise UserError("--out and --keep belong to --log clicks.csv: add it, or leave them out")
    if log is not None:
        # Imported here and below, so that help does not wait for torch.
        from dprec.serving.predicted.clicks import predict_clicks

        beside = [name.strip() for name in (keep or "").split(",") if name.strip()]
        predict_clicks(line.only("RUN"), log, out, beside, trusted, console)
    else:
        _predict_texts(line.only("RUN"), text, pair, file, trusted)


def _predict_texts(name: str, text: str | None, pair: str | None, file: str | None, trusted: Sequence[str]) -> None:
    from dprec.serving.predicted.texts import Classified

    run = Classified(name, trusted)
    given = [text if pair is None else f"{text}\t{pair}"] if text is not None else _lines(str(file))
    cut = [one.split("\t", 1) if run.of_pairs else [one] for one in given]
    if run.of_pairs and any(len(parts) < 2 for parts in cut):
        raise UserError("the run was trained on pairs: give --pair, or lines with a tab between the two texts")
    if pair is not None and not run.of_pairs:
        raise UserError("the run was trained on single texts: leave --pair out")
    seconds = [parts[1] for parts in cut] if run.of_pairs else None
    for chances in run.predict([parts[0] for parts in cut], seconds):
        print_json({"label": max(chances, key=chances.__getitem__), "probabilities": chances})


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} ({error}): give a file with one text a line") from None
    return lines_in(text)


main = Command(predict, PREDICT, positionals="RUN", own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
