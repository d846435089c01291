"""A command line: recipes, also those that come with dprec, ``--key value`` overrides, and a command's options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jsonargparse
from jsonargparse.typing import NonNegativeInt, PositiveInt

from dprec.errors import UserError

__all__ = ["CommandLine", "NonNegativeInt", "PositiveInt", "add_recipes", "add_run", "listed", "short"]

RECIPE_ENDINGS = (".yaml", ".yml", ".json")


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
        return cls([_recipe(word) for word in recipes], overrides, options)

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
    _, _, rest = str(error).partition('Parser key "')
    key, _, told = rest.partition('"')
    kinds = {
        action.dest: getattr(action, "_typehint", None) or action.type for action in (parser._actions if parser else ())
    }
    value = told.rpartition("value: ")[2].partition("\n")[0] if "value: " in told else ""
    if kinds.get(key) and "class_path" not in told and "Problem" not in told:
        given = "" if not value else " is null" if value == "None" else f" is {value!r}"
        return f"{key}{given}: give {in_words(kinds[key])}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("Parser key", "Option", "Subtypes", "Given value:"))]
    for place, line in enumerate(lines):
        if line.startswith("- Problem"):  # with a class that was named, and the next line says what
            return " ".join([lines[0], line.strip("- "), lines[min(place + 1, len(lines) - 1)]])
    return " ".join(lines if len(lines) <= 3 else telling[:3])


def in_words(kind: Any) -> str:
    """Return what a type takes.

    >>> in_words(float | None), in_words(Literal["sum", "mean"] | int)
    ('a number or null', "'sum', 'mean' or a whole number")
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    each = [name for part in parts for name in _names(part)]
    return " or ".join(filter(None, (", ".join(each[:-1]), each[-1])))


def _names(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    plain = get_origin(kind) or kind
    return [_WORDS.get(plain) or str(getattr(plain, "__name__", plain))]


_WORDS = {
    float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null", dict: "a mapping",
    list: "a list", tuple: "a list", Sequence: "a list", Mapping: "a mapping", Iterable: "a list",
    PositiveInt: "a whole number above 0", NonNegativeInt: "a whole number of at least 0", Path: "a path",
}  # fmt: skip


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


def _recipe(word: str) -> str:
    """The path of a recipe: a file, or one that comes with dprec, by its name. A file in your folder wins."""
    if Path(word).is_file():
        return word
    recipes = shipped()
    if word in recipes:
        return str(recipes[word])
    if word.endswith(RECIPE_ENDINGS):
        name = Path(word).stem
        known = name in recipes
        instead = f"{name} alone is the one that comes with dprec" if known else hint(name)
        raise UserError(f"no recipe at {word!r}: {instead}")
    raise UserError(f"{word!r} is neither a recipe nor an option; {hint(word)}; options are --key value")


INSTALLED = Path(__file__).parent / "recipes"  # setup.py puts them here when it builds
CHECKOUT = Path(__file__).parents[2] / "recipes"


def shipped() -> dict[str, Path]:
    """Every recipe by its name."""
    folder = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_named(name: str) -> Path:
    """The shipped recipe of this name.

    >>> recipe_named("quickstart").name
    'quickstart.yaml'
    >>> recipe_named("quickstrat")
    Traceback (most recent call last):
    dprec.errors.UserError: no recipe is called 'quickstrat'; did you mean quickstart?
    """
    recipes = shipped()
    if name in recipes:
        return recipes[name]
    raise UserError(f"no recipe is called {name!r}; {hint(name)}")


def hint(name: str) -> str:
    """What to give in place of a name that no recipe has."""
    close = difflib.get_close_matches(name, shipped(), n=1)
    return f"did you mean {close[0]}?" if close else "`dprec recipes` lists those that come with dprec"


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at a recipe's top.

    >>> first_sentence(recipe_named("quickstart"))
    'A private Transformer recommender on generated data: 20,000 users, 300 items, no download.'
    """
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words += line.removeprefix("#").split()
        ends = [place for place, word in enumerate(words) if word.endswith(".")]
        if ends:
            return " ".join(words[: ends[0] + 1])
    return " ".join(words)
