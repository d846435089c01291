"""One forward and one backward pass that leave, for every parameter, what each user adds to its gradient.

The tape watches *uses of parameters*, not modules. Inside `with tape:` every torch function that receives a
trainable parameter is run on a detached copy by the rule for that function (`dprec.gradients.operations`); the rule
keeps the use's input, and the backward pass hands it the gradient of the use's output. Autograd never builds
a parameter gradient. A weight used twice, under whatever name, simply has two contributions.

What a parameter-only computation yields (`weight.T`, `positions.weight[:T]`, `softplus(scale)`) is an
*expression* (`dprec.gradients.uses.expression`): it keeps its graph back to the parameters and behaves like one itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointError

from dprec.errors import NoRule, UncoveredUse, line_of_caller
from dprec.gradients import operations  # noqa: F401  enters the rules
from dprec.gradients.calls import DECISIONS, Decision, decision_of, form_of, remember
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import PaddedRows, without_padding
from dprec.gradients.intercept import foreign_function, leaves, nodes, tap
from dprec.gradients.layouts import layout
from dprec.gradients.layouts.follow import follow
from dprec.gradients.layouts.layout import FORM, Layout, layout_of, operation_name
from dprec.gradients.layouts.row_wise import by_statistics_of_the_batch
from dprec.gradients.operations.elementwise import OF_ELEMENTS
from dprec.gradients.uses.arguments import by_user
from dprec.gradients.uses.as_written import AsWritten
from dprec.gradients.uses.batches import batch_tensors
from dprec.gradients.uses.expression import (
    EXPRESSION,
    Expression,
    attributed,
    copied_from,
    express,
    follows_by_number,
    ids_of,
    sources_of,
)
from dprec.gradients.uses.low_precision import OwnPrecision
from dprec.gradients.uses.registry import HINTS, MIXING, RULES, Uses, Way
from dprec_kernels.processor import in_full

MESSAGE = "losses(batch) takes a backward pass by itself, whose gradients have no noise: return the losses alone"
CHECKPOINT = (
    "torch.utils.checkpoint runs a part of losses(batch) again in the backward pass, where dprec sees no uses of "
    "parameters: leave it out and make micro-batches smaller"
)
WIDE = (torch.float32, torch.float64)
OF_VECTORS = frozenset((F.linear, F.layer_norm, F.rms_norm))  # the last dimensions of a tensor
SIZES = frozenset(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad"))
Read: TypeAlias = "Callable[[Mapping[str, Tensor | None]], None]"  # of parameters, the ids read; None: all of one


class Tape(AsWritten):
    """Records `users` users' contributions to `parameters` during one `losses(batch)` and its backward pass.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> batch = {"x": torch.randn(5, 2)}
    >>> with Tape(dict(layer.named_parameters()), users=5) as tape:
    ...     tape.watch(batch)
    ...     losses = layer(batch["x"]).squeeze(1)
    >>> tape.backward(losses)
    >>> sorted(tape.contributions)
    ['bias', 'weight']
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        users: int,
        read: Read | None = None,
        real: int | None = None,
    ) -> None:
        """`read` is called before rows are read, and may update them.

        Only the first `real` users count, by default all: the losses of later rows enter no gradient.
        """
        super().__init__()
        self.users = users
        self.real = users if real is None else real
        self.parameters = dict(parameters)
        self.contributions: defaultdict[str, list[Contribution]] = defaultdict(list)
        self._read = read
        self._announced: dict[str, tuple[Tensor, int]] = {}  # ids ahead of their look-up, and their version then
        self.again: dict[Any, Way] = {}  # of a function, the shorter way of its rule for calls of the form that it runs
        self._names = dict(zip(map(id, parameters.values()), parameters, strict=True))
        self.left_torch_at = ""  # the last line that made users' values NumPy's or Python's
        self._precision = OwnPrecision(parameters)
        self._device = next((p.device.type for p in parameters.values()), "cpu")
        self._running = False  # whether a gradient that comes is of the tape's own backward pass

    def watch(self, batch: Any) -> None:
        """Declare the tensors that hold the users' data: row u of each belongs to user u."""
        for tensor in batch_tensors(batch):
            layout.mark(tensor, Layout(1) if tensor.shape[:1] == (self.users,) else Layout(0, "batch"))

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of one loss per user who counts, and close the tape."""
        self._refuse_shape(losses)
        known = layout_of(losses)
        if known is None or not known.known:
            raise NoRule(
                f"losses(batch) is not one loss per user in the batch's order{_blame(known)}: "
                "compute row u from user u alone"
            )
        if not losses.requires_grad:
            raise UncoveredUse(
                "losses(batch) follows from no parameter that is trained: use no detached copy, no torch.no_grad and "
                "no reentrant checkpoints"
            )
        function = foreign_function(self._refuse_other_leaves(losses))
        if function is not None:
            raise NoRule(
                f"losses(batch) uses the autograd.Function {function}, whose backward pass sees all users' rows at "
                "once: write it with torch functions, or with a rule"
            )
        unseen = self._run_back(losses[: self.real])
        if unseen:
            raise NoRule(
                f"parameter '{next(iter(unseen))}' got a gradient from a use that the tape did not see: "
                "use it through torch functions inside losses(batch)"
            )

    def _refuse_shape(self, losses: Tensor) -> None:
        refuse_no_losses(losses, self.users)
        self._precision.refuse([losses])

    def _run_back(self, losses: Tensor) -> dict[str, Tensor]:
        """Run the backward pass; return gradients that bypassed the rules."""
        held = {name: p.grad for name, p in self.parameters.items()}
        self._running = True
        for parameter in self.parameters.values():
            parameter.grad = None  # autograd adds to what it finds: only from nothing does an unseen use show
        try:
            with in_full(losses.device.type):  # norms and sums are float32 at least
                _backward(losses)
                self._zero_padding_rows()
            return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        finally:
            for name, parameter in self.parameters.items():
                parameter.grad = held[name]

    def _zero_padding_rows(self) -> None:
        """Zero the gradients of padding rows, of all tables together."""
        padded = [use for uses in self.contributions.values() for use in uses if type(use) is PaddedRows]
        done = dict(zip(map(id, padded), without_padding(padded), strict=True)) if padded else {}
        for uses in self.contributions.values() if done else ():
            uses[:] = [done.get(id(use), use) for use in uses]

    def _refuse_other_leaves(self, losses: Tensor) -> set[Any]:
        """Refuse losses whose backward pass would add gradients, neither clipped nor noised, to anything else.

        Return the nodes of the backward pass.
        """
        graph = nodes(losses)
        if "CheckpointFunctionBackward" in {kind.__name__ for kind in set(map(type, graph))}:
            raise UncoveredUse(CHECKPOINT)
        for leaf in leaves(losses, graph):
            if id(leaf) not in self._names:
                raise UncoveredUse(
                    f"losses(batch) uses a tensor {tuple(leaf.shape)} with a gradient that is no trained parameter of "
                    "the model: make it one, or set its requires_grad to False"
                )
        return graph

    def trainable(self, value: Any) -> bool:
        return isinstance(value, Tensor) and (id(value) in self._names or EXPRESSION in value.__dict__)

    def rows(self, tensor: Tensor, operation: str, used: Tensor) -> int:
        """Return how many rows of `tensor` belong to each user, or refuse to guess."""
        known = layout_of(tensor)
        if known is None or not known.known:
            raise NoRule(
                f"parameter '{self.name_of(used)}' meets in {operation} a tensor whose rows are not in the users' "
                f"order{_blame(known)}: keep users first"
            )
        return known.rows_per_user

    def announce(self, parameter: Tensor, ids: Tensor | None) -> None:
        """Announce that rows of a parameter are about to be read; nothing is announced of an expression's."""
        if self._read is not None and id(parameter) in self._names:
            name = self._names[id(parameter)]
            ahead, version = self._announced.get(name, (None, 0))
            if ids is None or ids is not ahead or ids._version != version:
                self._read({name: ids})

    def announce_all(self, parameters: Sequence[Tensor], ids: Sequence[Tensor]) -> None:
        """Announce so of several parameters; that the very same ids of one are read is not announced again."""
        names = [self._names.get(id(parameter)) for parameter in parameters]
        known = {name: own for name, own in zip(names, ids, strict=True) if name is not None}
        if self._read is not None and known and len(known) == len(names):
            self._read(known)
            self._announced.update({name: (own, own._version) for name, own in known.items()})

    def asked_for_gradients(self, used: Tensor) -> UncoveredUse:
        """The error for a gradient that `losses` computes itself, which rules cannot tell from their own."""
        return NoRule(f"parameter '{self.name_of(used)}' is met by a gradient that losses(batch) asks for by itself")

    def name_of(self, value: Tensor) -> str:
        return self._names[id(sources_of(value)[0])]

    def ids_of(self, value: Tensor) -> Tensor | None:
        """Return the ids at which an expression reads its parameter, or None if it does not look up."""
        return ids_of(value)

    def by_user(self, tensor: Tensor) -> Tensor:
        own = tensor.clone() if tensor.is_inference() else tensor  # nothing tells whether that is changed later
        return by_user(own, self.users)

    def record(self, output: Tensor, rows: int, uses: Uses, kept: Iterable[Tensor] = ()) -> Tensor:
        """Return `output` such that its gradient becomes a contribution to every (parameter, rule) in `uses`.

        `kept` are the inputs the rules will read in the backward pass: they must not be changed until then.
        """
        tapped = tap(output, self.listener(uses, kept))
        tapped._dprec_layout = layout.of_users(rows)  # type: ignore[attr-defined]
        return tapped

    def listener(self, uses: Uses, kept: Iterable[Tensor] = ()) -> Callable[[Tensor], None]:
        """Return a callback that turns an output's gradient into contributions; it is called once."""
        versions = [(tensor, tensor._version) for tensor in kept]
        for used, _ in uses:
            if used is not None and EXPRESSION in used.__dict__:
                versions.append((used, used._version))

        def receive(gradient: Tensor) -> None:
            nonlocal uses, versions
            if not uses:
                raise UncoveredUse("a second backward pass ran through a closed tape: call losses(batch) again")
            if not self._running:
                raise self.asked_for_gradients(self._first(uses))
            for tensor, version in versions:
                if tensor._version != version:
                    raise UncoveredUse(
                        f"an input of parameter '{self.name_of(self._first(uses))}' is changed in place after its use: "
                        "write the change out of place"
                    )
            for used, make in uses:
                key = id(used)
                if key in self._names:
                    self.contributions[self._names[key]].append(make(gradient))
                elif self.trainable(used):  # an expression
                    for parameter, contribution in attributed(used, make(gradient), self.users):
                        self.contributions[self._names[id(parameter)]].append(contribution)
            uses, versions = (), []  # frees what the rules kept

        return receive

    def _first(self, uses: Uses) -> Tensor:
        """Return what is used first of what is trained."""
        return next(used for used, _ in uses if self.trainable(used))

    def without_gradient(self, output: Tensor, why: str) -> Tensor:
        def refuse(gradient: Tensor) -> None:
            raise NoRule(why)

        return tap(output, refuse)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SIZES:
            return func(*args, **kwargs)
        form = form_of(func, args, kwargs, self.users, self._names)
        if form in DECISIONS:
            decided = DECISIONS[form]
            if decided.kind is not None:
                result = func(*args, **kwargs)
                if not decided.mark(result, self.users):
                    self._precision.refuse(())  # by an autocast of the losses' own it has another type
                    follow(func, args, kwargs, result, self.users)
                return result
            if decided.way is not None and self._read is None and not torch.is_autocast_enabled(self._device):
                return decided.way(self, *args, **kwargs)
            self._precision.refuse(())
            if self._read is None or RULES[func].announces:
                result = RULES[func].run(self, func, args, kwargs)
                if result is not NotImplemented:
                    return result
        if peek_interpreter_stack() is not None:
            raise NoRule(
                f"{operation_name(func)} runs inside torch.vmap or another transform of torch.func, which hides whose "
                "row is whose: write it for a batch of users"
            )
        if func is Tensor.backward:
            raise UncoveredUse(MESSAGE)
        tensors = layout.tensors_in((args, kwargs))
        self._precision.refuse(tensors)
        if func is Tensor.register_hook and id(args[0]) not in self._names:  # those are refused before the step
            raise NoRule("losses(batch) puts a hook on a gradient, which sees all users' rows at once: leave it out")
        used = [tensor for tensor in tensors if self.trainable(tensor)]
        name = operation_name(func)
        if not used and by_statistics_of_the_batch(name, args, kwargs):
            raise UncoveredUse(f"losses(batch) uses batch_norm with the batch's own statistics; {HINTS['batch_norm']}")
        if not used:
            result = func(*args, **kwargs)
            follow(func, args, kwargs, result, self.users, tensors)
            if name in ("numpy", "__array__", "tolist") and layout_of(args[0]) is not None:
                self.left_torch_at = line_of_caller()
            if kwargs.get("out") is None and not layout.writes_first_argument(name):
                remember(form, decision_of(result))
            return result
        entry = RULES.get(func)
        announced = entry is not None and entry.announces
        if self._read is not None and not announced and name not in FORM:
            for value in used:
                self.announce(value, None)
        if kwargs.get("out") is not None:
            raise UncoveredUse(
                f"parameter '{self.name_of(used[0])}' is used by {name} with out=, which leaves no "
                "gradient: use what the function returns"
            )
        if any(value.is_complex() for value in used) and func not in OF_ELEMENTS:
            entry = None  # gradients are kept as real numbers
        if func in OF_VECTORS and self._users_second(args):
            with self:
                return func(args[0].transpose(0, 1), *args[1:], **kwargs).transpose(0, 1)
        if entry is not None:
            self.again.clear()
            result = entry.run(self, func, args, kwargs)
            if result is not NotImplemented:
                self._refuse_lost(func, tensors, used[0], entry.exchanged)
                remember(form, Decision(None, way=self.again.get(func)))
                return result
            for value in used:  # a look-up of another kind, which announced nothing
                self.announce(value, None)
        others = [tensor for tensor in tensors if not self.trainable(tensor)]
        if not any(layout_of(tensor) is not None or tensor.requires_grad for tensor in others):
            return self._of_parameters_alone(func, args, kwargs, used)
        if name in layout.METADATA and not any(self.trainable(leaf) for leaf in layout.tensors_in(args[:1])):
            result = func(*args, **kwargs)
            follow(func, args, kwargs, result, self.users)
            return result
        if used[0].is_complex():
            name += " as complex numbers"
        hint = HINTS.get(
            name, "write it with linear, embedding, layer_norm, + or *, or give it a rule with dprec.gradients.rule"
        )
        raise (UncoveredUse if name in MIXING else NoRule)(
            f"parameter '{self.name_of(used[0])}' is used by {name}, which has no per-user gradient rule; {hint}"
        )

    def _users_second(self, args: Any) -> bool:
        """Whether vectors come with time in the first dimension and users in the second, as recurrent layers want."""
        known = layout_of(args[0]) if args and not self.trainable(args[0]) else None
        whole = len(args[1]) if len(args) > 1 and not isinstance(args[1], Tensor) else 1
        return known is not None and known.second > 0 and args[0].dim() >= 2 + whole

    def _refuse_lost(self, func: Callable[..., Any], tensors: list[Tensor], used: Tensor, exchanged: bool) -> None:
        """Refuse any operand, a bias too, whose rows are no longer in the users' order."""
        for tensor in tensors:
            known = None if self.trainable(tensor) else layout_of(tensor)
            if known is not None and not known.known and not (exchanged and known.second):
                self.rows(tensor, operation_name(func), used)

    def _of_parameters_alone(self, func: Callable[..., Any], args: Any, kwargs: Any, used: list[Tensor]) -> Any:
        versions = [value._version for value in used]
        result = func(*args, **kwargs)
        sources = {id(p): p for value in used for p in sources_of(value)}
        changed = [value for value, version in zip(used, versions, strict=True) if value._version != version]
        if changed == [result] and not result.dim() and result._base is None and id(result) not in self._names:
            express(result, Expression(tuple(sources.values())))  # such as a sum of penalties
        elif any(sources.keys() != set(map(id, sources_of(value))) for value in changed):
            raise NoRule(
                f"losses(batch) writes what follows from another parameter into '{self.name_of(changed[0])}', or into "
                f"what follows from it, by {operation_name(func)}: write it out of place"
            )
        first = used[0]
        transpose = (
            operation_name(func) in ("T", "mT", "t", "transpose")
            and first.dim() == 2
            and (result.shape, result.stride()) == (first.shape[::-1], first.stride()[::-1])  # not transpose(0, 0)
        )
        by_number = len(used) == 1 and follows_by_number(func, args)
        for leaf in tree_leaves(result):
            # Such as of `weight.float()`, where there was nothing to do.
            if not isinstance(leaf, Tensor) or any(leaf is value for value in used):
                continue
            same = by_number and leaf.shape == first.shape and leaf.dtype == first.dtype in WIDE
            base = first if transpose or same else None
            express(leaf, Expression(tuple(sources.values()), base, transpose, one=copied_from(func, first, leaf)))
        return result


def refuse_no_losses(losses: Any, users: int) -> None:
    """Refuse what is not a real number for each user.

    >>> refuse_no_losses(None, 3)
    Traceback (most recent call last):
    dprec.errors.UncoveredUse: losses(batch) returns None: return one loss per user, a tensor (3,)
    """
    if not isinstance(losses, Tensor):
        what = "None" if losses is None else f"a {type(losses).__name__}"
        raise UncoveredUse(f"losses(batch) returns {what}: return one loss per user, a tensor ({users},)")
    if losses.is_complex():
        raise UncoveredUse("losses(batch) returns complex numbers: return one real loss per user")
    if losses.shape != (users,):
        raise UncoveredUse(f"losses(batch) has shape {tuple(losses.shape)}; return one loss per user, ({users},)")


def _backward(losses: Tensor) -> None:
    try:
        losses.sum().backward()
    except CheckpointError as error:
        raise UncoveredUse(CHECKPOINT) from error


def _blame(known: Layout | None) -> str:
    return f" (lost at {known.lost_at})" if known is not None and known.lost_at else ""
