"""What a card's errors mean to a user: one line, as for any mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dprec.errors import UserError


@contextmanager
def one_line_of_a_card() -> Iterator[None]:
    """Raise what a card's error means in its place."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = "give a lower --data.tokens or --data.micro_batch, which leaves results as they are"
        raise UserError(f"the card's memory is full: {less}") from error
    except torch.AcceleratorError as error:
        if "device-side assert" not in str(error):
            raise
        raise UserError(
            "the card stopped at the assertion that is printed above, as where a table has no row of an id: run it "
            "again on the CPU, which says where"
        ) from error
