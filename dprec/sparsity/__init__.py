"""Strategies for embedding tables: which rows may change in a private step, and which rows get noise when.

Your own strategy is a subclass of `RowChoice` or of `NoiseSchedule`; this package also exports what it needs.
"""

from dprec.accounting.release import Release
from dprec.sparsity.adafest import AdaFEST, ExponentialSelection
from dprec.sparsity.eana import EANA, Dense
from dprec.sparsity.fest import FEST
from dprec.sparsity.lazydp import LazyDP
from dprec.sparsity.rows.kinds import TOUCHED, BatchRows, Counts, NoiseSchedule, Rates, RowChoice, Strategy, Touched
from dprec.sparsity.rows.tables import RowSpace, Table

__all__ = [
    "EANA",
    "FEST",
    "TOUCHED",
    "AdaFEST",
    "BatchRows",
    "Counts",
    "Dense",
    "ExponentialSelection",
    "LazyDP",
    "NoiseSchedule",
    "Rates",
    "Release",
    "RowChoice",
    "RowSpace",
    "Strategy",
    "Table",
    "Touched",
]
