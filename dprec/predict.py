"""Predict classes of texts, and clicks: ``python -m dprec.predict RUN --text "..."``, or ``--log LOG --out FILE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, add_run, listed
from dprec.cli.command import Command, print_json
from dprec.data.formats.format import lines_in
from dprec.errors import UserError
from dprec.lightning import leave_out


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--text", help="one text")
    parser.add_argument("--pair", help="the second text, where the run was trained on pairs")
    parser.add_argument("--file", help="one text a line, or two with a tab between; - is standard input")
    parser.add_argument("--log", help="records in any format of dprec fit; no label is needed")
    parser.add_argument("--out", help="with --log: .parquet, .csv, .tsv or .jsonl, a row for each record, in order")
    parser.add_argument("--keep", help="with --log: columns to copy beside the probability, such as user_id,ad_id")


def predict(line: CommandLine, console: Console) -> None:
    """Predict the class of each text, or how probable a click is in each row of a log.

      dprec predict runs/mine --text "The end makes up for all of it."
      dprec predict runs/clicks --log candidates.csv --keep user_id,ad_id --out probabilities.csv

    A text's answer is one JSON object a line. A log's columns have the names that the run's settings give. Needs only
    the checkpoint, and of texts what data.tokenizer and model.encoder name.
    """
    given, trusted = line.options, listed(line.options.trust)
    text, pair, file, log, out, keep = (given[name] for name in ("text", "pair", "file", "log", "out", "keep"))
    if [text, file, log].count(None) != 2 or (pair is not None and text is None):
        raise UserError('give --text "...", with --pair "..." for pairs, --file texts.txt, or --log clicks.csv')
    if log is None and (out is not None or keep is not None):
        raise UserError("--out and --keep belong to --log clicks.csv: add it, or leave them out")
    if log is not None:
        # Imported here and below, so that help does not wait for torch.
        from dprec.serving.predictions import predict_clicks

        predict_clicks(given.run, log, out, listed([keep or ""]), trusted, console)
    else:
        _predict_texts(given.run, text, pair, file, trusted)


def _predict_texts(name: str, text: str | None, pair: str | None, file: str | None, trusted: Sequence[str]) -> None:
    from dprec.serving.predictions import Classified

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


main = Command(predict, options, reads_run=True, own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
