"""Operations that training a recommender privately spends its time in; needs torch alone.

Every operation is a file, or a folder whose `__init__.py` is what callers call. `reference.py` has the plain truths
that tests compare with. In a folder `pieces.py` is the fast path in torch and numpy, for any device, and `triton.py`
the kernel for a GPU. `paths.py` alone decides which of them a tensor takes, by its device and by whether the kernel can
take it. So a new kernel is a `triton.py` with the functions of `pieces.py`, `paths.fast` in the `__init__.py` that
calls them, and a launch in `docs/studies/gpu_compile.py`, by which it is compiled. Training calls it in `gradients`,
`sparsity` and `noise`. `products` asks the faster of a CPU's libraries, and `wide_sum` adds up in float64: their truth,
as that of `recurrent`, is torch's own. The kernel of `catalogue_softmax` takes all users at once, where its pieces take
a few.

Over a catalogue or users: `catalogue_softmax`, `sample_norms`, `recurrent`. On the rows of a table: `row_noise`,
`contribution_map`, `lazy_noise`, `sparse_update`, `dense_noise`; `normals.py` says where their noise comes from,
`ordering.py` sorts ids, `file_tensor.py` keeps a table in a file. `workspace.py` holds memory that is used again.
Over all parameters or tables of a step, on a GPU: `joint`, `row_sums`, whose other path is the reference.
"""

from dprec_kernels.catalogue_softmax import catalogue_softmax
from dprec_kernels.processor import ask_mkl_for_equal_bits

ask_mkl_for_equal_bits()

__all__ = ["catalogue_softmax"]
