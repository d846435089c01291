"""Look through torch's own samples of all its operations, in a process of its own.

Any tensor of a sample may be the batch, and any that has as many rows with it; users may be in the first dimension or
in the second. Another user's row is changed, and the rows of all others must stay. It prints how many calls return what
counts as the users' rows, then those that mix them.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dprec.gradients.layouts.layout import layout_of, tensors_in
from dprec.gradients.tape import Tape

SAMPLES, MOST = 24, 12
VARIANTS = ("method_variant", "inplace_variant", "operator_variant")
UNDEFINED = {"empty_like"}  # whatever was in memory
RANDOM = {"nn.functional.rrelu"}  # who draws depends on the sign


def samples(operation: Any) -> Iterator[Any]:
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in operation.supported_dtypes("cpu"):
            repeat_luck()
            try:  # its sample_inputs gives samples of the same kinds, and reads the sources of all that calls it
                found = list(operation.sample_inputs_func(operation, "cpu", dtype, False))
            except Exception:
                return
            yield from found[:: max(1, len(found) // SAMPLES)]
            return


def repeat_luck() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed writes down who calls it, for devices to come
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def batches(sample: Any, dim: int) -> Iterator[list[Tensor]]:
    """Yield each tensor that may be a batch, and all that have as many rows, or columns where users are second."""
    tensors = [t for t in given(sample) if t.layout == torch.strided and not t.is_nested and t.dim() > dim]
    sized = [t for t in tensors if 2 <= t.shape[dim] <= MOST]
    yield from ([t] for t in sized)
    for users in {t.shape[dim] for t in sized}:
        alike = [t for t in sized if t.shape[dim] == users]
        if len(alike) > 1:
            yield alike


def given(sample: Any) -> list[Tensor]:
    return tensors_in((sample.input, sample.args, sample.kwargs))


def run(function: Callable[..., Any], sample: Any, batch: list[Tensor], values: list[Tensor], dim: int) -> list[Tensor]:
    """Return the operation's tensors, with other values of the batch, which have users first."""
    replaced = {id(tensor): value for tensor, value in zip(batch, values, strict=True)}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return replaced.get(id(value), value).detach().clone()
        if isinstance(value, (list, tuple)):
            return type(value)(map(copied, value))
        return {key: copied(each) for key, each in value.items()} if isinstance(value, dict) else value

    own = [copied(each) for each in (sample.input, sample.args, sample.kwargs)]
    watched = [mine for mine, old in zip(tensors_in(own), given(sample), strict=True) if id(old) in replaced]
    torch.default_generator.manual_seed(0)
    with Tape({}, len(values[0])) as tape:
        tape.watch(watched)
        if dim:
            second = {id(mine): mine.transpose(0, 1) for mine in watched}
            own = [tree_map(lambda value: second.get(id(value), value), each) for each in own]
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


def mixed(function: Callable[..., Any], sample: Any, batch: list[Tensor], dim: int) -> bool | None:
    """Whether another's row changed one that counts as a user's own; None where none counts."""
    values = [tensor.detach().transpose(0, dim).clone(memory_format=torch.contiguous_format) for tensor in batch]
    users = len(values[0])
    try:
        before = run(function, sample, batch, values, dim)
    except Exception:
        return None
    known = [known_rows(tensor) for tensor in before]
    if not any(rows for rows, _ in known):
        return None
    for user in {0, users - 1}:
        for changed in others(values, user):
            try:
                after = run(function, sample, batch, changed, dim)
            except Exception:
                continue
            for (rows, place), one, other in zip(known, before, after, strict=True):
                if not rows:
                    continue
                fits = one.shape[place] == rows * users and one.shape == other.shape
                if not fits or not same(one.transpose(0, place), other.transpose(0, place), user, rows):
                    return True
    return False


def known_rows(tensor: Tensor) -> tuple[int, int]:
    """Return how many rows each user has, and in which dimension; 0 where that is not known."""
    layout = layout_of(tensor)
    if layout is None:
        return 0, 0
    return (layout.second, 1) if layout.second else (layout.rows_per_user, 0)


def same(one: Tensor, other: Tensor, but: int, rows: int) -> bool:
    rest = [row for row in range(len(one)) if row // rows != but]
    one, other = one[rest].to(torch.cdouble), other[rest].to(torch.cdouble)
    return torch.equal(one, other) or torch.allclose(one, other, rtol=1e-7, atol=1e-9, equal_nan=True)


def main(part: int, parts: int) -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # which locks torch's switches

    warnings.simplefilter("ignore")
    count, wrong = 0, []
    for operation in op_db[part::parts]:
        if operation.name in UNDEFINED | RANDOM:
            continue
        functions = {"op": operation.op} | {name: getattr(operation, name, None) for name in VARIANTS}
        for sample in samples(operation):
            for dim in (0, 1):
                for batch in batches(sample, dim):
                    for name, function in functions.items():
                        found = mixed(function, sample, batch, dim) if function is not None else None
                        count += found is False
                        if found:
                            wrong.append((operation.name, name, dim, [tuple(t.shape) for t in batch]))
    print(count, *wrong, sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
