"""The forms in which one use's share of the users' gradients is kept. Each can compute its norms and its sum."""

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.catalogue_rows import CatalogueRows
from dprec.gradients.contributions.dense import Aligned, Dense
from dprec.gradients.contributions.look_ups import LookUp, Rows, SharedRows
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.pulled import Pulled

__all__ = ["Aligned", "CatalogueRows", "Contribution", "Dense", "LookUp", "Outer", "Pulled", "Rows", "SharedRows"]
