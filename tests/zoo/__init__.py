"""Every small model of the tests, with tags: a test says what it needs, and gets all models that have it.

| tag | what a model with it is |
|---|---|
| `model` | whole: it has metrics, and losses of a batch of dprec's data |
| `ranks`, `clicks` | one of histories, one of click records |
| `ours` | of a class that dprec has |
| `exports`, `unrolled` | exported for any length of history, for one length |
| `looked up` | one whose tables are looked up by id alone, as strategies for tables ask |
| `form` | a way of writing a model, as small as it can be |
| `layer` | one layer with all its options, which Opacus has tests of |
| `call` | one call of an operation that has a rule, its arguments by place or by name |
| `exact`, `alone`, `refused` | what becomes of it: by rules, each user alone, one line |
| `listed` | a row of docs/forms.md |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Make = Callable[..., Any]  # () -> a module with `losses(batch)`
Batch = Callable[..., Any]  # (users, seed=0) -> a batch that it takes
SMALL: dict[str, Small] = {}


@dataclass(frozen=True)
class Small:
    """A small model, with each choice of its options: (make, batch)."""

    name: str
    tags: frozenset[str]
    variants: tuple[tuple[Make, Batch], ...]
    says: str = ""  # what a refusal, or the line about users taken alone, has to say

    @property
    def make(self) -> Make:
        return self.variants[0][0]

    @property
    def batch(self) -> Batch:
        return self.variants[0][1]


def register(tags: str, batch: Batch, models: Mapping[str, tuple[str, Make]]) -> None:
    """Enter models that take the same batches, each with tags of its own besides; a comma is between two tags."""
    for name, (own, make) in models.items():
        enter(Small(name, frozenset(f"{tags}, {own}".strip(", ").split(", ")), ((make, batch),)))


def enter(small: Small) -> None:
    assert small.name not in SMALL, f"two small models are called {small.name}"
    SMALL[small.name] = small


def tagged(*tags: str) -> dict[str, Small]:
    """Return the models that have all of these tags."""
    return {name: small for name, small in SMALL.items() if small.tags.issuperset(tags)}
