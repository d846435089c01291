"""A command line: recipes, ``--key value`` overrides, and the command's own options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dprec.cli.shipped import hint, shipped
from dprec.errors import UserError

SHORT = {"-h": "--help", "-c": "--config", "-k": "--k"}
RECIPE_ENDINGS = (".yaml", ".yml", ".json")


@dataclass
class CommandLine:
    """Recipes, overrides and switches, each kind in the order of the line.

    Recipes are read before overrides, so an override always wins.

    >>> line = CommandLine.read(["--seed", "3", "--data.path=x.csv", "--json"], switches=["json"])
    >>> line.overrides, line.switches
    ([('seed', '3'), ('data.path', 'x.csv')], {'json'})
    """

    recipes: list[str] = field(default_factory=list)
    overrides: list[tuple[str, str]] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, argv: Sequence[str], switches: Sequence[str] = (), positionals: str | None = None) -> CommandLine:
        """``switches`` take no value; a word that is not an option is a recipe, or a ``positionals`` argument."""
        line = cls()
        words = list(argv)
        while words:
            word = words.pop(0)
            word = SHORT.get(word, word)
            if word.startswith("--"):
                line._option(word[2:], words, switches)
            elif positionals is None:
                line.recipes.append(_recipe(word))
            else:
                line.others.append(word)
        return line

    @property
    def words(self) -> list[str]:
        """The overrides as words of a command line."""
        return [word for key, value in self.overrides for word in (f"--{key}", value)]

    def _option(self, option: str, words: list[str], switches: Sequence[str]) -> None:
        key, equals, value = option.partition("=")
        if key in switches:
            if equals:
                raise UserError(f"--{key} is on or left out: give it no value")
            self.switches.add(key)
            return
        if not equals:
            if not words or words[0].startswith("--"):
                raise UserError(f"--{key} needs a value: --{key} VALUE")
            value = words.pop(0)
        if key == "config":
            self.recipes.append(_recipe(value))
        else:
            self.overrides.append((key, value))

    def take(self, key: str) -> str | None:
        """Remove an override that is an option of the command, and return its last value."""
        values = [value for name, value in self.overrides if name == key]
        self.overrides = [pair for pair in self.overrides if pair[0] != key]
        return values[-1] if values else None

    def take_list(self, key: str) -> list[str]:
        """As :meth:`take`, for names separated by commas; the option may be repeated."""
        values = [value for name, value in self.overrides if name == key]
        self.take(key)
        return [part.strip() for value in values for part in value.split(",") if part.strip()]

    def take_number(self, key: str, least: int = 1) -> int | None:
        """As :meth:`take`, for a whole number."""
        value = self.take(key)
        return None if value is None else whole_number(key, value, least)

    def only(self, what: str) -> str:
        """The only word that is neither a recipe nor an option."""
        if len(self.others) != 1:
            raise UserError(f"give exactly one {what}, got {len(self.others)}: {' '.join(self.others) or 'none'}")
        return self.others[0]

    def refuse_overrides(self) -> None:
        if self.overrides:
            raise UserError(f"unknown option --{self.overrides[0][0]}: --help lists the options")


def whole_number(option: str, text: str, least: int = 1) -> int:
    """The number that an option's text is.

    >>> whole_number("rounds", "3")
    3
    """
    if not text.isascii() or not text.isdigit() or int(text) < least:
        dashes = "-" if len(option) == 1 else "--"
        raise UserError(f"{dashes}{option} is {text!r}: give a whole number of at least {least}")
    return int(text)


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
