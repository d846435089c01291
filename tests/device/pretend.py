"""A device that is none: its tensors lie in this machine's memory, and behave towards all others as a GPU's do.

Importing this registers the device type `pretend` with torch. What a GPU refuses is refused: an operation on tensors
of two devices, `.numpy()`, a generator of the CPU. Stricter than a GPU, indices on the CPU are refused too: a GPU
takes them by a copy that nobody sees. `COUNT` says what a step would cost on a GPU: kernels that are launched, and
waits of Python for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


@dataclass
class Count:
    """What happened on the device."""

    launches: int = 0  # operations that compute or copy: what a GPU's time hangs on where tensors are small
    syncs: int = 0  # answers that Python waits for

    def clear(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0)


COUNT = Count()
ANSWERS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}  # with a value for Python
SIZED = {  # whose result's size only the device knows
    *("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
    *("aten::bincount", "aten::repeat_interleave", "aten::argwhere", "aten::multinomial"),
}
CROSSING = {"aten::copy_", "aten::_to_copy", "aten::_copy_from"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
NEVER = {"aten::set_", "aten::resize_"}  # would change what a wrapper says of itself
FORMS = {
    "aten::detach",
    "aten::_unsafe_view",
    "aten::lift_fresh",
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",  # puts indices and values into one object
    "aten::is_coalesced",
}


class Backend:
    """What torch and Lightning ask of a device's module."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def synchronize(device: object = None) -> None: ...

    @staticmethod
    def reset_peak_memory_stats(device: object = None) -> None: ...

    @staticmethod
    def max_memory_allocated(device: object = None) -> int:
        return 0

    @staticmethod
    def manual_seed_all(seed: int) -> None: ...

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class OnPretend(torch.Tensor):
    """A tensor on the device. `inner` has its numbers."""

    __module__ = "torch"  # as those of any device, so that nobody takes the counts below for a model's state
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnPretend:
        same = inner.is_inference() == torch.is_inference_mode_enabled()  # most often; to enter a mode takes long
        with nullcontext() if same else torch.inference_mode(inner.is_inference()):  # a view stays what its base is
            made: OnPretend = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                layout=inner.layout, device=DEVICE, requires_grad=False,
            )  # fmt: skip
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"OnPretend({self.inner})"

    def tolist(self) -> Any:
        COUNT.syncs += 1
        return self.inner.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()  # views share it, which is all that is asked of a storage's address

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def is_shared(self) -> bool:
        return False  # with another process

    def __deepcopy__(self, memo: dict[int, Any]) -> OnPretend:
        copied = OnPretend(self.inner.clone()).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied = torch.nn.Parameter(copied, self.requires_grad)  # type: ignore[assignment]
        memo[id(self)] = copied
        return copied

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


torch.OnPretend = OnPretend  # type: ignore[attr-defined]  # where pickle looks for it


def counted(work: Callable[[], Any]) -> Count:
    """Return what some work costs."""
    before = Count(*(getattr(COUNT, field.name) for field in fields(COUNT)))
    work()
    return Count(*(getattr(COUNT, field.name) - getattr(before, field.name) for field in fields(COUNT)))


@contextmanager
def interpreted() -> Iterator[None]:
    """Let the device's tensors take Triton's kernels, which must be interpreted: set TRITON_INTERPRET=1 before."""
    from triton.runtime import interpreter

    from dprec_kernels import paths

    def unwrapped(tensor: Any) -> Any:
        return tensor.inner.detach() if isinstance(tensor, OnPretend) else tensor

    launch = interpreter.GridExecutor.__call__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        COUNT.launches += any(isinstance(each, OnPretend) for each in args)
        LAUNCHED.append(self.fn.__name__)
        strangers = [each for each in args if isinstance(each, torch.Tensor) and not isinstance(each, OnPretend)]
        if strangers:
            raise RuntimeError(f"{self.fn.__name__}: a kernel was given a tensor that is not on the device")
        launch(self, *args, **kwargs)

    with (
        mock.patch.object(interpreter, "_unwrap_tensor", unwrapped),
        mock.patch.object(interpreter, "_rewrap_tensor", lambda tensor, original_tensor: tensor),
        mock.patch.object(interpreter.GridExecutor, "__call__", counting),
        mock.patch.object(paths, "GPUS", {*paths.GPUS, "pretend"}),
    ):
        yield


def _gru_cell(outer: Any, inner: Any, state: Any, outer_bias: Any = None, inner_bias: Any = None) -> Any:
    """What a GPU runs for a step of nn.GRU; the last tensor is for the way back."""
    outer, inner = (x if b is None else x + b for x, b in ((outer, outer_bias), (inner, inner_bias)))
    (reset, update, own), (to_reset, to_update, to_own) = outer.chunk(3, 1), inner.chunk(3, 1)
    reset, update = (reset + to_reset).sigmoid(), (update + to_update).sigmoid()
    own = (own + reset * to_own).tanh()
    return own + update * (state - own), torch.cat([reset, update, own, to_own, state], 1)


def _gru_cell_back(gradient: Any, kept: Any, has_bias: bool) -> Any:
    reset, update, own, to_own, state = kept.chunk(5, 1)
    for_update = gradient * (state - own) * update * (1 - update)
    for_own = gradient * (1 - update) * (1 - own**2)
    for_reset = for_own * to_own * reset * (1 - reset)
    outer = torch.cat([for_reset, for_update, for_own], 1)
    inner = torch.cat([for_reset, for_update, for_own * reset], 1)
    return outer, inner, gradient * update, outer.sum(0), inner.sum(0)


def _lstm_cell(outer: Any, inner: Any, cell: Any, outer_bias: Any = None, inner_bias: Any = None) -> Any:
    total = outer + inner + sum(bias for bias in (outer_bias, inner_bias) if bias is not None)
    add, keep, own, show = total.chunk(4, 1)
    add, keep, own, show = add.sigmoid(), keep.sigmoid(), own.tanh(), show.sigmoid()
    after = keep * cell + add * own
    return show * after.tanh(), after, torch.cat([add, keep, own, show], 1)


def _lstm_cell_back(gradient: Any, for_after: Any, cell: Any, after: Any, kept: Any, has_bias: bool) -> Any:
    add, keep, own, show = kept.chunk(4, 1)
    gradient = torch.zeros_like(cell) if gradient is None else gradient
    bent = after.tanh()
    inner = gradient * show * (1 - bent**2) + (0.0 if for_after is None else for_after)
    gates = torch.cat(
        [inner * own * add * (1 - add), inner * cell * keep * (1 - keep), inner * add * (1 - own**2),
         gradient * bent * show * (1 - show)], 1,
    )  # fmt: skip
    return gates, inner * keep, gates.sum(0)


ONLY_THERE = {  # what torch runs on GPUs alone
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_back,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_back,
}
LAUNCHED: list[str] = []  # names of Triton's kernels, as they were launched


@dataclass(frozen=True)
class Known:
    """What torch says of an operation, which it is slow to say."""

    name: str
    is_view: bool
    changes_form: bool  # of its argument, in place
    writes: bool  # into an argument


@cache
def _known(func: Any) -> Known:
    written = any(each.alias_info and each.alias_info.is_write for each in func._schema.arguments)
    return Known(func._schema.name, func.is_view, torch.Tag.inplace_view in func.tags, written)


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (tuple, list):
        for each in value:
            yield from _leaves(each)
    elif type(value) is dict:
        yield from _leaves(list(value.values()))
    else:
        yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change all that tuples, lists and dictionaries hold; torch's tree_map does the same in many times the time."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(change, each) for each in value])
    if kind is dict:
        return {key: _mapped(change, each) for key, each in value.items()}
    return change(value)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    known = _known(func)
    name = known.name
    tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    here = [isinstance(tensor, OnPretend) for tensor in tensors]
    to = _target(args, kwargs, tensors)
    if name in NEVER:
        raise RuntimeError(f"{name} is not for tensors on the pretend device")
    if name == "aten::_has_compatible_shallow_copy_type":
        return all(here)
    if name not in CROSSING and any(here):
        _refuse_strangers(name, tensors, here)
    _refuse_generator(name, kwargs)
    _count(known, tensors, here, to, args, kwargs)
    given = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if given.get("device") is not None:
        given["device"] = torch.device("cpu")
    if name == "aten::copy_":
        _inside(args[0]).copy_(_inside(args[1]).clone())  # torch copies results onto themselves
        return args[0]
    if known.changes_form:
        with no_dispatch():
            func(*args, **kwargs)  # the wrapper's own form
    result = ONLY_THERE.get(name, func)(*_mapped(_inside, args), **_mapped(_inside, given))
    if name in ANSWERS or to == "cpu":
        return result
    same = {id(_inside(tensor)): tensor for tensor in tensors}  # in-place operations return their argument
    wrapped = _mapped(lambda value: same.get(id(value), _outside(value)), result)
    if known.is_view or known.writes:
        _follow_form(tensors)
    return wrapped


def _target(args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> str:
    """Return the type of the device that the result lies on."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type
    return "pretend" if not tensors or any(isinstance(tensor, OnPretend) for tensor in tensors) else "cpu"


def _refuse_strangers(name: str, tensors: list[torch.Tensor], here: list[bool]) -> None:
    strangers = [tuple(t.shape) for t, on in zip(tensors, here, strict=True) if not on and t.dim() > 0]
    if strangers or (name in INDEXED and not here[0]):
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found pretend:0 and cpu {strangers}"
        )


def _refuse_generator(name: str, kwargs: dict[str, Any]) -> None:
    generator = kwargs.get("generator")
    if generator is not None:
        raise RuntimeError(f"{name}: expected a generator of pretend:0, but found one of {generator.device}")


def _count(
    known: Known, tensors: list[torch.Tensor], here: list[bool], to: str, args: Any, kwargs: dict[str, Any]
) -> None:
    name = known.name
    at_once = bool(kwargs.get("non_blocking") or (name == "aten::copy_" and args[2:3] == (True,)))
    if name == "aten::copy_":
        _count_copy(tensors[1], not here[0] and here[1], here[0] and not here[1], at_once)
    elif name == "aten::_to_copy":
        _count_copy(tensors[0], here[0] and to == "cpu", not here[0], at_once)
    elif name in ANSWERS or name in SIZED:
        COUNT.syncs += 1
    elif name in INDEXED and any(leaf.dtype == torch.bool for leaf in _leaves(args[1]) if leaf is not None):
        COUNT.syncs += 1  # a mask's size is not known
    if not known.is_view and name not in FORMS:
        COUNT.launches += 1


def _count_copy(tensor: torch.Tensor, down: bool, up: bool, at_once: bool) -> None:
    # One from the host ends when the device has done all it was told before.
    COUNT.syncs += down or (up and not at_once and tensor.dim() > 0)


def _follow_form(tensors: list[torch.Tensor]) -> None:
    """Refuse an operation that changed an argument's form in place, which its wrapper would not know of."""
    for tensor in tensors:
        if isinstance(tensor, OnPretend) and tensor.inner.shape != tensor.shape:
            raise RuntimeError(f"a tensor's form was changed in place: {tensor.shape} to {tensor.inner.shape}")


def _inside(value: Any) -> Any:
    return value.inner if isinstance(value, OnPretend) else value


def _outside(value: Any) -> Any:
    return OnPretend(value) if isinstance(value, torch.Tensor) and not isinstance(value, OnPretend) else value


def _made(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch calls to make a tensor on the device from nothing."""
    return _run(func, args, kwargs)


_setup_privateuseone_for_python_backend("pretend", backend_module=Backend())
DEVICE = torch.device("pretend", 0)
_EVERY, _SOME = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_EVERY.fallback(_made, "PrivateUse1")
_GROWN = ("arange", "arange.start", "arange.start_step", "linspace", "randperm", "eye", "eye.m")  # made empty by torch
for _name in (*_GROWN, "_to_copy", "copy_"):
    _packet, _, _overload = _name.partition(".")
    _function = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _SOME.impl(_name, partial(_made, _function), "PrivateUse1")

# What autocast computes in bfloat16, as it does on other devices; all else is left as it is.
_CAST = torch.library.Library("_", "IMPL")
_CAST.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_OFF = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _in_bfloat16(function: Any, *args: Any, **kwargs: Any) -> Any:
    def lowered(value: Any) -> Any:
        cast = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.device == DEVICE
        return value.to(torch.get_autocast_dtype("pretend")) if cast else value

    with torch._C._ExcludeDispatchKeyGuard(_OFF):
        return function(*_mapped(lowered, args), **_mapped(lowered, kwargs))


for _name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "scaled_dot_product_attention"):
    _SOME.impl(_name, partial(_in_bfloat16, getattr(torch.ops.aten, _name).default), "AutocastPrivateUse1")
