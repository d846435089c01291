"""A command line: recipes, also those that come with dprec, ``--key value`` overrides, and a command's options."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jsonargparse
from jsonargparse.typing import NonNegativeInt, PositiveInt

from dprec.errors import UserError, in_words

__all__ = ["CommandLine", "NonNegativeInt", "PositiveInt", "add_recipes", "add_run", "listed", "short"]


@dataclass
class CommandLine:
    """Recipes, overrides and options, each kind in the order of the line.

    Recipes are read before overrides, so an override always wins.

    >>> line = CommandLine.read(["--seed", "3", "--data.path=x.csv"])
    >>> line.recipes, line.overrides
    ([], [('seed', '3'), ('data.path', 'x.csv')])
    """

    recipes: list[str] = field(default_factory=list)
    overrides: list[tuple[str, str]] = field(default_factory=list)
    options: jsonargparse.Namespace = field(default_factory=jsonargparse.Namespace)

    @classmethod
    def read(cls, words: Sequence[str], parser: jsonargparse.ArgumentParser | None = None) -> CommandLine:
        """Read words by the parser of a command; what none of its options is overrides a setting."""
        if parser is None:
            parser = jsonargparse.ArgumentParser(exit_on_error=False)
            add_recipes(parser)
        own, rest, overrides, left = parser._option_string_actions, [], [], list(words)
        while left:
            word = left.pop(0)
            key, equals, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or f"--{key}" in own:
                rest.append(word)
                continue
            if not equals and (not left or left[0].startswith("--")):
                raise UserError(f"--{key} needs a value: --{key} VALUE")
            overrides.append((key, value if equals else left.pop(0)))
        options = _parsed(parser, rest)
        recipes = [*options.get("recipe", []), *options.get("config", [])]
        return cls([str(recipe_named(word)) for word in recipes], overrides, options)

    @property
    def words(self) -> list[str]:
        """The overrides as words of a command line."""
        return [word for key, value in self.overrides for word in (f"--{key}", value)]

    @classmethod
    def of_options(cls, words: Sequence[str], parser: jsonargparse.ArgumentParser) -> CommandLine:
        """Read words that are nothing but a command's options."""
        return cls(options=_parsed(parser, words))


def _parsed(parser: jsonargparse.ArgumentParser, words: Sequence[str]) -> jsonargparse.Namespace:
    try:
        found = parser.parse_args(list(words))
        for name, value in found.items():
            if isinstance(value, int) and not isinstance(value, bool):
                found[name] = int(value)  # of the parser's restricted numbers, which no file can hold
        return found
    except jsonargparse.ArgumentError as error:
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown = [name for name in given if name not in flags]
        close = [match for name in unknown for match in difflib.get_close_matches(name, flags, n=1)]
        hints = f"; did you mean {close[0]}?" if close else "; --help lists the options" if unknown else ""
        raise UserError(f"{short(error, parser)}{hints}") from None


def short(error: Exception, parser: jsonargparse.ArgumentParser | None = None) -> str:
    """Return in one line what the parser says: the key, the value and what to give."""
    key, _, told = str(error).partition('Parser key "')[2].partition('"')
    actions = [action for action in parser._actions if action.dest == key] if parser else []
    if actions and "value: " in told and "class_path" not in told and "Problem" not in told:
        value = told.rpartition("value: ")[2].partition("\n")[0]
        given = "null" if value == "None" else repr(value)
        return f"{key} is {given}: give {in_words(getattr(actions[0], '_typehint', None) or actions[0].type)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("Parser key", "Option", "Subtypes", "Given value:"))]
    for place, line in enumerate(lines):
        if line.startswith("- Problem"):  # with a class that was named, and the next line says what
            telling = [lines[0], line.strip("- "), *lines[place + 1 : place + 2]]
            break
    return " ".join(lines if len(lines) <= 3 else telling[:3]).replace(f'Parser key "{key}":', f"{key}:", 1)


def add_recipes(parser: jsonargparse.ArgumentParser) -> None:
    """Add what commands take that read recipes."""
    parser.add_argument("recipe", nargs="*", default=[], help="a file, or a name of `dprec recipes`; a later one wins")
    parser.add_argument("-c", "--config", action="append", default=[], help="the same, as an option")


def add_run(parser: jsonargparse.ArgumentParser) -> None:
    """Add what commands take that use a run."""
    parser.add_argument("run", help="a run folder or a .ckpt file")
    parser.add_argument("--trust", action="append", default=[], help="modules of yours to import for the run's classes")


def listed(values: Iterable[str]) -> list[str]:
    """Return names that are separated by commas, in an option that may be repeated.

    >>> listed(["a, b", "c"])
    ['a', 'b', 'c']
    """
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


INSTALLED = Path(__file__).parent / "recipes"  # setup.py puts them here when it builds
CHECKOUT = Path(__file__).parents[2] / "recipes"


def shipped() -> dict[str, Path]:
    """Every recipe by its name."""
    folder = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_named(word: str) -> Path:
    """A recipe in a file of yours, or one that comes with dprec, by its name.

    >>> recipe_named("quickstart").name
    'quickstart.yaml'
    >>> recipe_named("quickstrat")
    Traceback (most recent call last):
    dprec.errors.UserError: there is no recipe 'quickstrat'; did you mean quickstart? Options are --key value
    """
    recipes = shipped()
    if Path(word).is_file() or word in recipes:
        return Path(word) if Path(word).is_file() else recipes[word]
    close = difflib.get_close_matches(Path(word).stem, recipes, n=1)
    hint = f"did you mean {close[0]}?" if close else "`dprec recipes` lists those that come with dprec."
    raise UserError(f"there is no recipe {word!r}; {hint} Options are --key value")


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at a recipe's top.

    >>> first_sentence(recipe_named("quickstart"))
    'A private Transformer recommender on generated data: 20,000 users, 300 items, no download.'
    """
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    words = " ".join(word for line in lines for word in line.removeprefix("#").split())
    return re.split(r"(?<=\.) ", words, maxsplit=1)[0]
