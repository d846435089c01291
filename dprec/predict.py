"""Predict classes of texts, and clicks: ``python -m dprec.predict RUN --text "..."``, or ``--log LOG --out FILE``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, add_run, listed
from dprec.cli.command import Command, print_json
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--text", help="one text")
    parser.add_argument("--pair", help="the second text, where the run was trained on pairs")
    parser.add_argument("--file", help="one text a line, or two with a tab between; - is standard input")
    parser.add_argument("--log", help="records in any format of dprec fit; no label is needed")
    parser.add_argument("--out", help="with --log: .parquet, .csv, .tsv or .jsonl, a row for each record, in order")
    parser.add_argument("--keep", help="with --log: columns to copy beside the probability, such as user_id,ad_id")


def predict(line: CommandLine, console: Console) -> None:
    """Predict the class of each text, or the probability of a click for each row of a log.

      dprec predict runs/mine --text "The end makes up for all of it."
      dprec predict runs/clicks --log candidates.csv --keep user_id,ad_id --out probabilities.csv

    A text's answer is one JSON object a line. A log needs the column names of the run's settings. Needs only
    the checkpoint, and for texts what data.tokenizer and model.encoder name.
    """
    given, trusted = line.options, listed(line.options.trust)
    text, pair, file, log, out, keep = (given[name] for name in ("text", "pair", "file", "log", "out", "keep"))
    if [text, file, log].count(None) != 2 or (pair is not None and text is None):
        raise UserError('give --text "...", with --pair "..." for pairs, --file texts.txt, or --log clicks.csv')
    if log is None and (out is not None or keep is not None):
        raise UserError("--out and --keep belong to --log clicks.csv: add it, or leave them out")
    # Imported here, so that help does not wait for torch.
    from dprec.serving.files import file_for_answers, read_lines, write_table
    from dprec.serving.predictions import PROBABILITY, ClickRun, TextRun
    from dprec.serving.served import load_as

    if log is not None:
        path = file_for_answers(out, "--log")
        run = load_as(ClickRun, given.run, trusted, "predicts no clicks: give a run of a click model")
        frame = write_table(run.parts(log, listed([keep or ""])), path)
        mean = float(frame[PROBABILITY].to_numpy().mean())
        console.print(f"{len(frame):,} records, on average {mean:.4f}: {path}", soft_wrap=True)
        return
    texts = load_as(TextRun, given.run, trusted, "is no classifier of texts: give a run of TextClassifier")
    lines = read_lines(file) if file is not None else [text if pair is None else f"{text}\t{pair}"]
    cut = [one.split("\t", 1) if texts.of_pairs else [one] for one in lines]
    if texts.of_pairs and any(len(parts) < 2 for parts in cut):
        raise UserError("the run was trained on pairs: give --pair, or lines with a tab between the two texts")
    if pair is not None and not texts.of_pairs:
        raise UserError("the run was trained on single texts: leave --pair out")
    seconds = [parts[1] for parts in cut] if texts.of_pairs else None
    for found in texts.each([parts[0] for parts in cut], seconds):
        print_json(found)


main = Command(predict, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
