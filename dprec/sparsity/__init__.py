"""Which rows of embedding tables may change in a private step, where their noise goes and when.

A strategy of your own is a subclass of `RowChoice` or of `NoiseSchedule`; the rest that it needs is here too.
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
