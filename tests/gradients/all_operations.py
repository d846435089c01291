"""Look through torch's own samples of all its operations, in a process of its own.

Any tensor of a sample may be the batch, and any that has as many rows with it. Another user's row is changed, and the
rows of all others must stay. It prints how many calls return what counts as the users' rows, then those that mix them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dprec.gradients.layouts.layout import layout_of, tensors_in
from dprec.gradients.tape import Tape

SAMPLES, MOST = 24, 12
VARIANTS = ("method_variant", "inplace_variant", "operator_variant")
UNDEFINED = {"empty_like"}  # whatever was in memory
RANDOM = {"nn.functional.rrelu"}  # who draws depends on the sign


def samples(operation: Any) -> Iterator[Any]:
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in operation.supported_dtypes("cpu"):
            try:
                found = list(operation.sample_inputs("cpu", dtype, requires_grad=False))
            except Exception:
                return
            yield from found[:: max(1, len(found) // SAMPLES)]
            return


def batches(sample: Any) -> Iterator[list[Tensor]]:
    """Yield each tensor that may be a batch, and all that have as many rows."""
    tensors = [t for t in given(sample) if t.layout == torch.strided and not t.is_nested and t.dim()]
    sized = [t for t in tensors if 2 <= len(t) <= MOST]
    yield from ([t] for t in sized)
    for users in {len(t) for t in sized}:
        alike = [t for t in sized if len(t) == users]
        if len(alike) > 1:
            yield alike


def given(sample: Any) -> list[Tensor]:
    return tensors_in((sample.input, sample.args, sample.kwargs))


def run(function: Callable[..., Any], sample: Any, batch: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """Return the operation's tensors, with other values of the batch."""
    replaced = {id(tensor): value for tensor, value in zip(batch, values, strict=True)}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replaced.get(id(value), value).detach().clone()
        if isinstance(value, (list, tuple)):
            return type(value)(map(copied, value))
        return {key: copied(each) for key, each in value.items()} if isinstance(value, dict) else value

    own = [copied(each) for each in (sample.input, sample.args, sample.kwargs)]
    watched = [mine for mine, old in zip(tensors_in(own), given(sample), strict=True) if id(old) in replaced]
    torch.manual_seed(0)
    with Tape({}, len(batch[0])) as tape:
        tape.watch(watched)
        return tensors_in(function(own[0], *own[1], **own[2]))


def others(values: list[Tensor], user: int) -> Iterator[list[Tensor]]:
    """Yield batches in which that user has another row."""
    yield [with_row(value, user, value[user - 1]) for value in values]
    yield [with_row(value, user, value[user].flip(-1) if value.dim() > 1 else value[user - 2]) for value in values]
    yield [with_row(v, user, v[user] * 0.5 + 0.1 if v.is_floating_point() else ~v[user] if v.dtype == torch.bool else v[user - 1]) for v in values]  # fmt: skip # noqa: E501


def with_row(value: Tensor, user: int, row: Tensor) -> Tensor:
    changed = value.detach().clone()
    changed[user] = row
    return changed


def mixed(function: Callable[..., Any], sample: Any, batch: list[Tensor]) -> bool | None:
    """Whether another's row changed one that counts as a user's own; None where none counts."""
    users, values = len(batch[0]), [tensor.detach().clone() for tensor in batch]
    try:
        before = run(function, sample, batch, values)
    except Exception:
        return None
    known = [known_rows(tensor) for tensor in before]
    if not any(known):
        return None
    for user in {0, users - 1}:
        for changed in others(values, user):
            try:
                after = run(function, sample, batch, changed)
            except Exception:
                continue
            for rows, one, other in zip(known, before, after, strict=True):
                if rows and (len(one) != rows * users or one.shape != other.shape or not same(one, other, user, rows)):
                    return True
    return False


def known_rows(tensor: Tensor) -> int:
    layout = layout_of(tensor)
    return 0 if layout is None else layout.rows


def same(one: Tensor, other: Tensor, but: int, rows: int) -> bool:
    rest = [row for row in range(len(one)) if row // rows != but]
    return torch.allclose(
        one[rest].to(torch.cdouble), other[rest].to(torch.cdouble), rtol=1e-7, atol=1e-9, equal_nan=True
    )


def main(part: int, parts: int) -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # which locks torch's switches

    warnings.simplefilter("ignore")
    count, wrong = 0, []
    for operation in op_db[part::parts]:
        if operation.name in UNDEFINED | RANDOM:
            continue
        functions = {"op": operation.op} | {name: getattr(operation, name, None) for name in VARIANTS}
        for sample in samples(operation):
            for batch in batches(sample):
                for name, function in functions.items():
                    found = mixed(function, sample, batch) if function is not None else None
                    count += found is False
                    if found:
                        wrong.append((operation.name, name, [tuple(t.shape) for t in batch]))
    print(count, *wrong, sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
