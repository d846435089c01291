"""What a card's errors mean to a user: one line, as for any mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dprec.errors import UserError


def of_a_card(error: UserError | RuntimeError) -> UserError | RuntimeError:
    """Return what a card's error means, or the error."""
    if isinstance(error, torch.OutOfMemoryError):
        less = "give a lower --data.tokens or --data.micro_batch, which leaves results as they are"
        return UserError(f"the card's memory is full: {less}")
    if isinstance(error, torch.AcceleratorError) and "device-side assert" in str(error):
        return UserError(
            "the card stopped at the assertion that is printed above, as where a table has no row of an id: run it "
            "again on the CPU, which says where"
        )
    return error


@contextmanager
def one_line_of_a_card() -> Iterator[None]:
    """Raise what a card's error means."""
    try:
        yield
    except RuntimeError as error:
        if (meant := of_a_card(error)) is error:
            raise
        raise meant from error
