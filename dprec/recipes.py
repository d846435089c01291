"""List the recipes that come with dprec, or copy one: ``python -m dprec.recipes [copy NAME]``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, first_sentence, recipe_named, shipped
from dprec.cli.command import Command, print_json
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", default=[], help="copy NAME: put a recipe beside you, to change it")
    parser.add_argument("--out", default=".", help="the folder to copy it to; a file that exists is kept")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of lines")


def recipes(line: CommandLine, console: Console) -> None:
    """List the recipes that come with dprec, each with its first sentence, or copy one.

      dprec recipes copy quickstart

    `dprec fit NAME` finds a recipe by its name.
    """
    match line.options.words:
        case []:
            _list(console, line.options.json)
        case ["copy", name]:
            copied = _copy(name, Path(line.options.out))
            console.print(f"{copied}: change it, then dprec fit {copied}", soft_wrap=True)
        case ["copy", *names]:
            raise UserError(f"copy takes one name, got {len(names)}: dprec recipes copy quickstart")
        case [word, *_]:
            raise UserError(f"unknown word {word!r}: give none to list the recipes, or copy NAME")


def _list(console: Console, as_json: bool) -> None:
    described = {name: first_sentence(path) for name, path in shipped().items()}
    if as_json:
        print_json(described)
        return
    width = max(map(len, described))
    for name, sentence in described.items():
        console.print(f"{name:{width}}  {sentence}", soft_wrap=True)


def _copy(name: str, folder: Path) -> Path:
    source = recipe_named(name)
    target = folder / source.name
    if target.exists():
        raise UserError(f"{target} exists: rename it, or copy into another folder with --out FOLDER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from None
    return target


main = Command(recipes, options, without_words=True)


if __name__ == "__main__":
    sys.exit(main())
