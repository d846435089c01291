"""What a GPU cannot do ends in one line, without a traceback."""

from __future__ import annotations

import pytest
import torch

from dprec.errors import UserError
from dprec.run.process import one_line_of_a_card


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "--data.tokens or --data.micro_batch",
        ),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "on the CPU"),
    ],
)
def test_a_card_that_stops_says_what_to_do(error: RuntimeError, said: str) -> None:
    with pytest.raises(UserError, match=said), one_line_of_a_card():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), torch.AcceleratorError("CUDA error: no kernel image")])
def test_what_nobody_can_mend_keeps_its_traceback(error: RuntimeError) -> None:
    with pytest.raises(type(error)) as told, one_line_of_a_card():
        raise error
    assert told.value is error
