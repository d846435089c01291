"""Values that leave tensors for Python, where nobody sees what becomes of them.

`loss / float(loss.max())` and `if (loss > 9).any():` carry one user's value to all others. While it is a tensor, its
layout tells; a number in Python has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from dprec.errors import NoRule
from dprec.gradients.layouts.layout import layout_of

# Give others a name for a tensor's memory, such as a kernel of one's own.
SHARES = {"numpy", "__array__", "__dlpack__", "__cuda_array_interface__", "storage", "untyped_storage", "data_ptr"}
READS = SHARES | {
    *("item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "is_nonzero"),
    *("equal", "allclose", "apply_", "map_", "map2_", "__reduce_ex__", "__format__", "__repr__"),
}
# What asks for a tensor's form, not for its values, or says what will be asked.
FORM = {
    *("shape", "size", "dim", "ndim", "numel", "stride", "dtype", "device", "layout", "requires_grad", "__len__"),
    *("about_to_read", "names", "__dir__"),
}
# Tell how many rows there are, which may follow from values of the batch.
SIZES = {
    *("shape", "size", "__len__", "numel", "nelement", "nbytes", "stride", "storage_offset", "is_same_size", "_nnz"),
    *("dim", "ndim", "ndimension", "unbind", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit"),
    *("dsplit", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "unbind_copy", "split_copy"),
    *("split_with_sizes_copy", "is_contiguous", "is_set_to", "is_non_overlapping_and_dense", "dim_order"),
}
WATCHED = READS | SIZES
# Give numbers of a tensor that are not its values.
NUMBERS = FORM | SIZES | {"element_size", "itemsize", "get_device", "_version", "output_nr", "retains_grad", "__hash__"}
NUMBERS |= {"dense_dim", "sparse_dim", "_is_view", "_dimI", "_dimV", "is_floating_point", "is_complex", "is_signed"}
NUMBERS |= {"is_leaf", "is_sparse", "is_sparse_csr", "is_cuda", "is_cpu", "is_mps", "is_xpu", "is_meta", "is_quantized"}
NUMBERS |= {"is_nested", "is_mkldnn", "is_inference", "is_conj", "is_neg", "is_pinned", "is_shared", "is_coalesced"}
NUMBERS |= {"type"}  # where it converts, it gives no number
# Packages that read to check an argument, to log, or to choose between two ways to one result. Other code of torch's
# reads for whoever calls it, as nn.ModuleList does at layers[t] and tree_map(float, t).
HARMLESS = ("dprec", "dprec_kernels", "pytorch_lightning", "lightning", "torchmetrics", "transformers")
_HARMLESS_OF_TORCH = (
    *("torch.nn.functional", "torch.nn.modules.activation", "torch.nn.modules.transformer", "torch.nn.modules.rnn"),
    *("torch.nn.utils.rnn", "torch.nn.attention", "torch.distributions", "torch.autograd", "torch.masked"),
)
_TOLD = {bool, int, float, complex, str}
_MEASURE = ("torch.nn.functional", "torch.nn.modules", "torch.nn.utils.rnn")  # ask for sizes to check them
_ON_BEHALF = ("dprec.gradients.tape", __name__)


def reader(size: bool = False) -> str | None:
    """Return the line that reads a tensor, or its size, as "file.py:12"; None if it is one of a package that may."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_module(frame) in _ON_BEHALF or _reads_for_others(frame, size)):
        frame = frame.f_back
    if frame is None or _module(frame).partition(".")[0] in (*HARMLESS, "torch"):
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _reads_for_others(frame: FrameType, size: bool) -> bool:
    """Whether this is code of torch's that hands on what it reads."""
    module = _module(frame)
    known = _MEASURE if size else _HARMLESS_OF_TORCH
    harmless = module.startswith(known) and frame.f_code.co_name != "__repr__"
    return module.partition(".")[0] == "torch" and not harmless


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def refuse_reads(name: str, tensors: Iterable[Tensor], result: Any = None) -> None:
    """Refuse to let a model's code take values of several users out of tensors, as this operation does."""
    name = name.partition(".")[0]  # of torch.ops.aten, too
    if name in READS or (result is not None and name not in NUMBERS):
        follows = any(layout_of(tensor) is not None for tensor in tensors)
    elif name in SIZES:
        follows = any((known := layout_of(tensor)) is not None and known.sized for tensor in tensors)
    else:
        return
    where = reader(name in SIZES) if follows else None
    if where is not None:
        raise NoRule(
            f"losses(batch) reads values of all users into Python by {name}, in {where}, which may carry them from "
            "one to another: leave them in tensors"
        )


def tells(result: Any) -> bool:
    """Whether what a function returns has numbers or text in it."""
    kind = type(result)
    return kind in _TOLD or (kind in (list, tuple, torch.Size) and any(type(each) in _TOLD for each in result))
