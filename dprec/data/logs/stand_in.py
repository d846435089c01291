"""The requested data, or invented data under another name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from dprec.errors import UserError

OnMissing = Literal["error", "stand-in"]
T = TypeVar("T")


@dataclass(frozen=True)
class Source(Generic[T]):
    """The data, its name, and the sentence to print if it is not the requested data."""

    found: T
    name: str
    notice: str | None = None


def stand_in(
    dataset: str, problem: str, wanted: str, on_missing: OnMissing, invent: Callable[[], T], invented: str
) -> Source[T]:
    """If a dataset is missing, `on_missing` decides: raise an error, or return invented data under another name."""
    if on_missing == "error":
        raise UserError(f"{problem}: {wanted}")
    consequence = f"this run uses invented {invented}: these are not {dataset}'s figures and say nothing about it"
    notice = f"STAND-IN DATA: {problem}; {consequence}. To train on {dataset}: {wanted}."
    return Source(invent(), f"{dataset}-stand-in", notice)


def refuse_unknown(on_missing: str) -> None:
    if on_missing not in get_args(OnMissing):
        raise UserError(f"data.on_missing is '{on_missing}': give {' or '.join(get_args(OnMissing))}")
