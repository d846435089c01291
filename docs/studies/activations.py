"""DPFormer's Table 3: the variance that a Gaussian has after ReLU or GELU, by formula and from samples."""

from __future__ import annotations

from argparse import Namespace

import torch
import torch.nn.functional as F

import study
from dprec.models.networks import reattention
from study import Row

STDS = (0.01, 0.1, 1.0)  # of N(0, std): the table's second argument is no variance
SAMPLES = tuple(10**power for power in range(1, 7))
ACTIVATIONS = {"ReLU": (F.relu, reattention.through_relu), "GELU": (F.gelu, reattention.through_gelu)}
PAPER = {0.01: "3.40e-5", 0.1: "0.0034", 1.0: "0.3408"}  # its analytic column, which is ReLU's for both
COLUMNS = {"std": "N(0, ·)", "activation": "after", **{str(n): f"{n:.0e}" for n in SAMPLES}} | {
    "analytic": "formula", "paper": "paper's",
}  # fmt: skip


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each input and activation: a sample's variance for each size, and the formula's."""
    generator, rows = torch.Generator().manual_seed(0), []
    for std in STDS:
        for name, (activation, rule) in ACTIVATIONS.items():
            drawn = std * torch.randn(SAMPLES[-1], dtype=torch.float64, generator=generator)
            sampled = {str(many): float(activation(drawn[:many]).var()) for many in SAMPLES}
            given = torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1), std**2, dtype=torch.float64)
            exact = {"analytic": float(rule(*given)), "paper": PAPER[std]}
            rows.append({"std": std, "activation": name, **sampled, **exact})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
