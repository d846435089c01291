"""What a private run asks of a model, of its data and of a batch. Whatever has these members fits; no base is needed.

    Model         what every model has; in a script a function `losses` will do instead
    SharesRows, AsksOfAll, MixesUsers, LossIsRowLocal     what a model may have besides
    UserData      what training draws users from
    DrawsOfEach   what such data may have besides, for runs of several processes
    Users         users of whom any few can be made into micro-batches

A loader's batch is a list of micro-batches. What a batch sampler has to say of itself is `Sampler` in
`accounting/sampling`; what a data module has, `SampledData` in `data/module`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dprec.errors import UserError

Losses: TypeAlias = Callable[[Any], Tensor]  # of a micro-batch: one per user (B,), each from that user's row alone


class Model(Protocol):
    """Every model that is trained privately."""

    def losses(self, batch: Any) -> Tensor:
        """Return one loss for each user of a batch, such as F.cross_entropy(…, reduction='none')."""


class SharesRows(Protocol):
    """A model whose users all look up some rows of tables, whoever is drawn."""

    def shared_rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Return tables and the ids of such rows in the next step. They may follow from the step, not from data."""


class AsksOfAll(Protocol):
    """A model that asks for sums over all users before training."""

    @property
    def releases(self) -> Sequence[Any]:
        """Return what it will ask for, each once: a `Release` of `accounting/release`."""


class MixesUsers(Protocol):
    """A model that knows why it cannot be trained privately."""

    @property
    def mixes_users(self) -> str | None:
        """Return why one user's loss depends on others, None where it does not."""


class LossIsRowLocal(Protocol):
    """A model whose losses another process can compute, which has its parameters and buffers. Its own class says so."""

    @property
    def loss_is_row_local(self) -> bool:
        """Return whether a loss follows from parameters, buffers and a user's row: from no step, and no draw."""


class UserData(Protocol):
    """Data of which each item is all of one user. `__getitems__`, where it has that, is asked for several at once."""

    def __len__(self) -> int:
        """Return how many users there are, so that the probability of each to be drawn is known."""

    def __getitem__(self, user: int, /) -> Any:
        """Return all of one user."""


# What `dprec.private` and `Privacy.loader` make a loader of; torch's own type of a data set has no length.
Drawable: TypeAlias = UserData | Dataset[Any] | DataLoader[Any]


class Users(Protocol):
    """Users whom training draws from."""

    def __len__(self) -> int:
        """Return how many there are, numbered from 0."""

    def of(self, users: Sequence[int]) -> list[Any]:
        """Return the micro-batches of these users alone, as training would get them."""


class DrawsOfEach(Protocol):
    """Data that draw something of each user, such as a few of many records, by a key of their own."""

    def draw_by(self, key: int) -> None:
        """Draw by this key of 128 bits from now on: processes of a run share it, so that they can compare data."""


class _Empty(Protocol):
    """What is in every protocol."""


_Offered = TypeVar("_Offered")


def offers(thing: object, protocol: Callable[..., _Offered]) -> TypeGuard[_Offered]:
    """Tell whether something has what a protocol names; wrappers that hand on what they hold count.

    >>> offers([1, 2], UserData), offers(iter([1, 2]), UserData)
    (True, False)
    """
    return all(hasattr(thing, name) for name in _members(protocol))


def refuse_without(thing: object, protocol: Any, advice: str) -> None:
    """Refuse what lacks something that a protocol names.

    >>> refuse_without(iter([1, 2]), UserData, "give a list")
    Traceback (most recent call last):
    dprec.errors.UserError: list_iterator has no __len__(), which has to return how many users there are, so that the \
probability of each to be drawn is known: give a list
    """
    for name, member in _members(protocol).items():
        if not hasattr(thing, name):
            told = inspect.getdoc(member) or ""
            raise UserError(
                f"{type(thing).__name__} has no {name}{_arguments(member)}, which has to "
                f"{told[:1].lower()}{told.splitlines()[0][1:].rstrip('.')}: {advice}"
            )


def _members(protocol: Any) -> dict[str, Any]:
    """Return the methods, properties and attributes that a protocol names."""
    own = {name: member for name, member in vars(protocol).items() if name not in vars(_Empty)}
    named = {name: member for name, member in own.items() if callable(member) or isinstance(member, property)}
    return named | dict.fromkeys(protocol.__annotations__)


def _arguments(member: Any) -> str:
    return f"({', '.join([*inspect.signature(member).parameters][1:])})" if callable(member) else ""
