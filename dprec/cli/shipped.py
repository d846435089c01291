"""The recipes that come with the package: `recipes/` of a checkout, and a copy of it inside an installed package."""

from __future__ import annotations

import difflib
from pathlib import Path

from dprec.errors import UserError

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
