"""Operations that take most of the time of private training of recommenders; needs only torch.

Every operation is a file, or a folder whose `__init__.py` has the functions for callers. `reference.py` has the
references for tests. In a folder, `pieces.py` is the fast path in torch and numpy, for any device, and `triton.py` the
kernel for a GPU. Only `paths.py` decides which of them is used, by the tensor's device and the kernel's limits. So a
new kernel is a `triton.py` with the functions of `pieces.py`, `paths.fast` in the `__init__.py` that calls them, and a
launch in `docs/studies/gpu_compile.py`, which compiles it. Training calls it in `gradients`, `sparsity` and `noise`.
`products` uses the faster of a CPU's libraries, and `wide_sum` sums in float64: their reference, as that of
`recurrent`, is torch. The kernel of `catalogue_softmax` processes all users at once, its pieces a few at a time.

Over a catalogue or users: `catalogue_softmax`, `sample_norms`, `recurrent`. On the rows of a table: `row_noise`,
`contribution_map`, `lazy_noise`, `sparse_update`, `dense_noise`; `normals.py` has their sources of noise,
`ordering.py` sorts ids, `file_tensor.py` keeps a table in a file. `workspace.py` keeps memory for reuse.
Over all parameters or tables of a step, on a GPU: `joint`, `row_sums`; other devices use the reference.
"""

from dprec_kernels.catalogue_softmax import catalogue_softmax
from dprec_kernels.processor import ask_mkl_for_equal_bits

ask_mkl_for_equal_bits()

__all__ = ["catalogue_softmax"]
