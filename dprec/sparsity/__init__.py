"""Which rows of embedding tables may change in a private step, where their noise goes and when: one file a strategy."""

from dprec.sparsity.adafest import AdaFEST
from dprec.sparsity.dense import Dense
from dprec.sparsity.eana import EANA
from dprec.sparsity.exponential import ExponentialSelection
from dprec.sparsity.fest import FEST
from dprec.sparsity.lazydp import LazyDP
from dprec.sparsity.rows.noise_schedule import NoiseSchedule
from dprec.sparsity.rows.row_choice import TOUCHED, BatchRows, RowChoice
from dprec.sparsity.rows.strategy import Strategy

__all__ = [
    "EANA",
    "FEST",
    "TOUCHED",
    "AdaFEST",
    "BatchRows",
    "Dense",
    "ExponentialSelection",
    "LazyDP",
    "NoiseSchedule",
    "RowChoice",
    "Strategy",
]
