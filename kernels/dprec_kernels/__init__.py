"""Operations that training a recommender privately spends its time in; needs torch alone.

Every operation is a folder: `reference.py` is the plain truth, `pieces.py` the fast path for any device. Those on
the rows of a table are `row_noise`, `contribution_map`, `lazy_noise`, `sparse_update` and `dense_noise`; `normals.py`
says where their noise comes from, `paths.py` which path a tensor takes.
"""

from dprec_kernels.catalogue_softmax import catalogue_softmax

__all__ = ["catalogue_softmax"]
