"""One user's gradient, by plain autograd and out of a tape, in memory that grows with the rows the user reads.

Users who are taken one by one depend on nobody else, whatever the model does. But a model in which users touch each
other is then another one than its author wrote, so it is refused as everywhere (`each_alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dprec.checks.entropy import Streams
from dprec.checks.same_draws import SameDraws
from dprec.distributed.host_tables import HostTable
from dprec.errors import MixedUsers, NoRule
from dprec.gradients.alone import one_by_one
from dprec.gradients.clipping import LARGEST, record_alone
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.own_functions import OwnFunctions
from dprec.gradients.tape import Read, refuse_no_losses
from dprec.gradients.uses.look_up import look_up_of
from dprec_kernels.sparse import of_rows

Taken: TypeAlias = "tuple[Mapping[str, Sequence[Contribution]], int]"  # contributions, and the user's place in them

SMALLEST = 1e-4  # norm below which a gradient is rounding
TOLERANCE = 1e-3  # of the gradient's norm in float32; in units of the last place where that is more


class SparseLookUps(TorchFunctionMode):
    """Look-ups in these tables get sparse gradients from autograd; any other use of a table has a dense one.

    >>> table = torch.nn.Embedding(1000, 2)
    >>> with SparseLookUps([table.weight]):
    ...     read = table(torch.tensor([7])) + table.weight[torch.tensor([9])]
    >>> read.sum().backward()
    >>> table.weight.grad.coalesce().indices()
    tensor([[7, 9]])
    """

    def __init__(self, tables: Iterable[Tensor]) -> None:
        super().__init__()
        self._tables = {id(table) for table in tables}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = look_up_of(func, args, kwargs or {}, lambda tensor: id(tensor) in self._tables)
        if call is None:
            return func(*args, **(kwargs or {}))
        if isinstance(call.table, HostTable) and call.ids.device != call.table.device:
            own = call.by_rows(lambda rows: cast(Tensor, _OnHost.apply(call.table, rows)))
            return own.table[own.ids] if own.given is None else func(**own.given)
        if call.given is not None:
            return func(**call.given | {"sparse": True})
        return F.embedding(call.ids % len(call.table), call.table, sparse=True)


class _OnHost(torch.autograd.Function):
    """Rows of a table in host memory, on the card; their gradient is the table's, on the host."""

    @staticmethod
    def forward(ctx: Any, table: HostTable, rows: Tensor) -> Tensor:
        ctx.rows, ctx.shape = rows, table.shape
        return table.detach()[rows]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return of_rows(ctx.rows.cpu(), gradient[0].cpu(), ctx.shape), None


def difference(uses: Sequence[Contribution], place: int, parameter: Tensor, exact: Tensor | None) -> Tensor:
    """Return what a tape found for the user at this place, less the exact gradient: where both may be other than 0."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    own, rest = slice(place, place + 1), parameter.shape[1:]
    reads = as_look_ups(uses)
    if reads is None or not (exact is None or exact.is_sparse):
        whole = torch.zeros(1, *parameter.shape, dtype=dtype, device=parameter.device)
        for use in uses:
            use.materialise(whole, own)
        return whole[0] if exact is None else whole[0].sub_(exact.to_dense() if exact.is_sparse else exact)
    device = reads[0].ids.device if reads else parameter.device
    met = [use.ids_of(own) for use in reads]
    if exact is not None:
        exact = exact.coalesce().to(device)
        met.append(exact.indices()[0])
    rows = torch.cat(met).unique() if met else torch.zeros(0, dtype=torch.int64)
    found = torch.zeros(1, len(rows), *rest, dtype=dtype, device=device)
    for use in reads:
        use.numbered(rows).materialise(found, own)
    if exact is not None:
        found[0].index_add_(0, torch.searchsorted(rows, exact.indices()[0]), exact.values().to(dtype), alpha=-1)
    return found[0]


def each_alone(
    parameters: Mapping[str, nn.Parameter],
    tables: Collection[str],
    losses: Callable[[Any], Tensor],
    read: Read,
    streams: Streams | None,
    part: Any,
    why: NoRule,
) -> Iterator[Taken]:
    """Yield what each user of a micro-batch adds who is taken alone; refuse losses that differ in company."""
    with SameDraws(part, streams) as draws, SparseLookUps([parameters[name] for name in tables]), OwnFunctions():
        together = losses(part)
    refuse_no_losses(together, len(part))
    if together.requires_grad:
        _refuse_mixed_backwards(parameters, together)
    for place, user in enumerate(one_by_one(part, why)):
        with SameDraws(user, streams):
            alone = record_alone(parameters, losses, user, read).contributions
        exact: Sequence[Tensor | None] = [None] * len(parameters)
        if together.requires_grad:
            exact = torch.autograd.grad(
                together[place], list(parameters.values()), allow_unused=True, retain_graph=True
            )
        wrong = off(parameters, alone, 0, exact)
        if wrong and draws.by_user:
            raise why  # who draws by place draws other numbers alone: nobody can tell whether users touch each other
        if wrong:
            name = max(wrong, key=wrong.__getitem__)
            raise MixedUsers(
                f"parameter '{name}': a user's gradient depends on who else is in the batch (it moves by "
                f"{wrong[name]:.2g} of its norm): compute entry u of losses(batch) from user u's own items only. "
                f"Besides, {why}"
            )
        yield alone, 0


def _refuse_mixed_backwards(parameters: Mapping[str, nn.Parameter], together: Tensor) -> None:
    """Refuse losses whose gradient together is not the sum of each one's: a hook on its way mixes users."""

    whole, *each = (
        torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
        for loss in (together.sum(), *together)
    )
    # Beside the norm over all parameters: the gradient of a bias of keys is 0, and what is left of it is rounding.
    norms = torch.stack([norm_of(part).cpu() for own in each for part in own if part is not None])
    size = float(norms[norms.isfinite()].norm().clamp(min=SMALLEST))
    apart = {}
    for place, name in enumerate(parameters):
        parts = [own[place] for own in (whole, *each)]
        if all(part is not None and not part.is_sparse for part in parts):  # rows come by dense ways, too
            total, *own = parts
            summed = torch.stack(own).sum(0)
            if bool(summed.isfinite().all()):
                apart[name] = float(norm_of(total - summed))
    if any(not off <= TOLERANCE * size for off in apart.values()):
        worst = max(apart, key=apart.__getitem__)
        raise MixedUsers(
            f"parameter '{worst}': the gradient of several users is not the sum of each one's, since a hook or "
            "an autograd.Function on its way depends on who else is in the batch: compute row u of what it "
            "returns from row u alone"
        )


def off(
    parameters: Mapping[str, nn.Parameter],
    contributions: Mapping[str, Sequence[Contribution]],
    place: int,
    truth: Sequence[Tensor | None],
) -> dict[str, float]:
    """Return the parameters of which the user at this place has another gradient, and by how much of its norm."""
    norms = [torch.zeros((), dtype=torch.float64) if exact is None else norm_of(exact).cpu() for exact in truth]
    size, found = float(torch.stack(norms).norm().clamp(min=SMALLEST)), {}
    if not size < LARGEST and _is_broken(parameters, contributions, place):
        return {}  # left out in either way
    for (name, parameter), exact in zip(parameters.items(), truth, strict=True):
        apart = float(difference(contributions.get(name, ()), place, parameter, exact).double().norm()) / size
        if not apart <= max(TOLERANCE, 16 * torch.finfo(parameter.dtype).eps):  # what is no number is wrong, too
            found[name] = apart
    return found


def _is_broken(
    parameters: Mapping[str, nn.Parameter], contributions: Mapping[str, Sequence[Contribution]], place: int
) -> bool:
    """Whether the gradient that a tape found for the user at this place is not finite, or as good as that."""
    found = [difference(contributions.get(name, ()), place, p, None) for name, p in parameters.items()]
    return not float(torch.stack([norm_of(gradient).cpu() for gradient in found]).norm()) < LARGEST


def norm_of(gradient: Tensor) -> Tensor:
    return (gradient.coalesce().values() if gradient.is_sparse else gradient).double().norm()
