"""Values that leave tensors for Python, where nobody sees what becomes of them.

`loss / float(loss.max())` and `if (loss > 9).any():` carry one user's value to all others. While it is a tensor, its
layout tells; a number in Python has none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

READS = {
    *("item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "is_nonzero"),
    *("equal", "allclose", "numpy", "__array__", "__dlpack__", "__cuda_array_interface__"),
    *("storage", "untyped_storage", "data_ptr"),  # such as a kernel of one's own is given
    *("apply_", "map_", "map2_", "__reduce_ex__", "__format__", "__repr__"),
}
# What asks for a tensor's form, not for its values, or says what will be asked.
FORM = {
    *("shape", "size", "dim", "ndim", "numel", "stride", "dtype", "device", "layout", "requires_grad", "__len__"),
    "about_to_read",
}
# Tell how many rows there are, which may follow from values of the batch.
SIZES = {
    *("shape", "size", "__len__", "numel", "nelement", "nbytes", "stride", "storage_offset", "is_same_size", "_nnz"),
    *("dim", "ndim", "ndimension", "unbind", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit"),
    *("dsplit", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
}
WATCHED = READS | SIZES
# Give numbers of a tensor that are not its values.
NUMBERS = FORM | SIZES | {"element_size", "itemsize", "get_device", "_version", "output_nr", "retains_grad", "__hash__"}
NUMBERS |= {"dense_dim", "sparse_dim", "_is_view", "_dimI", "_dimV"}
# Packages that read to check an argument, to log, or to choose between two ways to one result.
HARMLESS = ("torch", "dprec", "dprec_kernels", "pytorch_lightning", "lightning", "torchmetrics", "transformers")
_ON_BEHALF = (
    "torch._tensor",
    "torch.overrides",
    "torch.functional",
    "torch.storage",
    "torch.utils.dlpack",
    "torch._ops",
    "dprec.gradients.tape",
    __name__,
)


def reader() -> str | None:
    """Return the line that reads a tensor now, as "file.py:12"; None if it is one of a package that may."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module(frame) in _ON_BEHALF:
        frame = frame.f_back
    if frame is None or _module(frame).partition(".")[0] in HARMLESS:
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
