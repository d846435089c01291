"""The cells of the comparison: a recipe at an ε, and the paper's figures for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dprec.errors import UserError

DATA = {"movielens": "MovieLens-1M", "games": "Amazon Games"}
MODELS = {
    "spectral_former": "SpectralFormer",
    "spectral_former_plain": "SpectralFormer, no Re-Attention",
    "spectral": "Spectral",
    "spectral_small": "Spectral, 300 items",
    "discriminant": "Spectral, by the histories before items",
    "discriminant_clearer": "Spectral, by the histories before items, clear 1.75",
    "discriminant_closer": "Spectral, by the histories before items, shrink 1, clear 2.5",
    "als": "PrivateALS",
    "dpformer": "DPFormer",
    "dpformer_popular": "DPFormer, from popularity",
    "transformer": "Transformer",
    "transformer_untied": "Transformer, untied",
    "transformer_untied_halved": "Transformer, untied, half the width",
    "gru": "GRU",
    "lstm": "LSTM",
    "gru_plain": "GRU, without the shortcut",
    "lstm_plain": "LSTM, without the shortcut",
    "dpformer_paper": "DPFormer, the paper's settings",
    "transformer_paper": "Transformer, the paper's settings",
    "transformer_paper_untied": "Transformer, untied, the paper's settings",
    "transformer_paper_untied_halved": "Transformer, untied, half the width, the paper's settings",
}
# DPFormer without Re-Attention is the Transformer, bit for bit.
PLAIN = ("--model.error_scale", "0", "--model.frequencies", "uniform")
CELL_ALONE = (
    "--model.shortcut_mean", "null", "--model.fade", "1", "--model.network_scale", "1", "--model.dim", "64",
    "--model.learning_rate", "0.01",
)  # fmt: skip
VARIANTS = {
    "gru_plain": ("gru", CELL_ALONE),
    "lstm_plain": ("lstm", CELL_ALONE),
    "spectral_former_plain": ("spectral_former", ("--model.error_scale", "0")),
    "discriminant_clearer": ("discriminant", ("--model.clear", "1.75")),
    "discriminant_closer": ("discriminant", ("--model.shrink", "1", "--model.clear", "2.5")),
    "spectral_small": ("spectral", ("--model.top", "300", "--model.rank", "32")),
    "transformer_untied_halved": ("transformer_untied", ("--model.dim", "16")),
    "transformer_paper": ("dpformer_paper", PLAIN),
    "transformer_paper_untied": ("dpformer_paper", (*PLAIN, "--model.tied", "false")),
    "transformer_paper_untied_halved": (
        "dpformer_paper", (*PLAIN, "--model.tied", "false", "--model.dim", "32"),
    ),
}  # fmt: skip
EPSILONS = (5.0, 8.0, 10.0)
SHOWN = (1.0, *EPSILONS)
# Models that the tables have at ε = 1, on which data, and those that they have there alone.
AT_ONE: Mapping[str, Iterable[str]] = {
    **dict.fromkeys(("spectral_former", "spectral_small", "discriminant", "discriminant_closer"), DATA),
    **dict.fromkeys(("als", "dpformer"), DATA),
    **dict.fromkeys(("discriminant_clearer", "dpformer_popular"), ("movielens",)),
}
AT_ONE_ALONE: Mapping[str, Iterable[str]] = {
    "spectral_small": DATA,
    "discriminant_clearer": ("games",),  # there it is the recipe
}
GRID = ((0.005, 0.01, 0.02, 0.04), (256, 1024))  # learning rates and batch sizes, of one model at one ε
# The paper's grid (E.3), and what its figures show of it: data, models, ε.
PAPER_GRID = ((0.001, 0.003, 0.005, 0.007, 0.009), (256, 512, 1024, 2048, 4096))
FIGURES = {
    "figure2": ("movielens", ("transformer_paper", "transformer_paper_untied", "transformer_paper_untied_halved"), 5.0),
    "figure7": ("games", ("dpformer_paper", "transformer_paper"), 8.0),
}
NUMBER = r"\d+(?:\.\d+)?"
# (model, data) -> NDCG@10 and HIT@10 in % at each ε, from tables 1 and 2 of the DPFormer paper.
PAPER = {
    ("dpformer", "movielens"): ((5.88, 11.13), (7.70, 14.31), (8.42, 15.40)),
    ("transformer", "movielens"): ((4.57, 8.69), (7.05, 13.17), (7.99, 14.82)),
    ("transformer_untied", "movielens"): ((2.33, 4.47), (2.56, 5.11), (2.74, 5.39)),
    ("gru", "movielens"): ((2.26, 4.58), (2.40, 4.75), (2.81, 5.53)),
    ("lstm", "movielens"): ((2.65, 5.08), (2.76, 5.41), (2.95, 5.55)),
    ("dpformer", "games"): ((1.64, 3.01), (1.98, 3.70), (1.99, 3.73)),
    ("transformer", "games"): ((1.37, 2.47), (1.54, 2.77), (1.57, 2.83)),
    ("transformer_untied", "games"): ((1.16, 2.36), (1.20, 2.38), (1.40, 2.47)),
    ("gru", "games"): ((1.13, 2.46), (1.33, 2.22), (1.47, 2.48)),
    ("lstm", "games"): ((1.19, 2.46), (1.23, 2.46), (1.34, 2.51)),
}


@dataclass(frozen=True)
class Cell:
    """One recipe at one ε, unchanged or with another learning rate and batch size."""

    data: str
    model: str
    epsilon: float
    tuned: tuple[float, float] | None = None

    @classmethod
    def read(cls, text: str) -> Cell:
        """The cell of this name; a folder's name has dashes in place of @ and :, which some systems refuse.

        >>> Cell.read("movielens_dpformer@5")
        Cell(data='movielens', model='dpformer', epsilon=5.0, tuned=None)
        >>> Cell.read("games_transformer_untied-8-0.003-1024").name
        'games_transformer_untied@8:0.003:1024'
        """
        found = re.fullmatch(
            rf"({'|'.join(DATA)})_({'|'.join(MODELS)})[@-]({NUMBER})(?:[:-]({NUMBER})[:-]({NUMBER}))?", text
        )
        if found is None:
            raise UserError(
                f"--cells {text}: write DATA_MODEL@EPSILON or DATA_MODEL@EPSILON:LEARNING_RATE:BATCH_SIZE, "
                f"with {' or '.join(DATA)} and one of {', '.join(MODELS)}"
            )
        data, model, epsilon, rate, batch = found.groups()
        return cls(data, model, float(epsilon), (float(rate), float(batch)) if rate else None)

    @property
    def name(self) -> str:
        tuned = ":{:g}:{:g}".format(*self.tuned) if self.tuned else ""
        return f"{self.data}_{self.model}@{self.epsilon:g}{tuned}"

    @property
    def recipe(self) -> list[str]:
        """What to train: the recipe and its overrides."""
        name, differs = VARIANTS.get(self.model, (self.model, ()))
        settings = [f"recipes/{self.data}_{name}.yaml", *differs, "--privacy.epsilon", f"{self.epsilon:g}"]
        if self.tuned:
            settings += ["--model.learning_rate", f"{self.tuned[0]:g}", "--data.batch_size", f"{self.tuned[1]:g}"]
        return settings

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / re.sub("[@:]", "-", self.name) / f"seed-{seed}"


def all_cells() -> list[Cell]:
    """Every cell of the tables and the grid.

    >>> [cell.name for cell in all_cells() if cell.tuned][:2], Cell("movielens", "spectral_small", 1.0) in all_cells()
    (['movielens_spectral_former@8:0.005:256', 'movielens_spectral_former@8:0.005:1024'], True)
    """
    first = [Cell(data, model, SHOWN[0]) for model, logs in AT_ONE.items() for data in logs]
    pairs = [(data, model) for data in DATA for model in MODELS if data not in AT_ONE_ALONE.get(model, ())]
    return first + [Cell(*pair, epsilon) for pair in pairs for epsilon in EPSILONS] + grid_cells()


def grid_cells() -> list[Cell]:
    """One model over learning rates and batch sizes."""
    return [Cell("movielens", "spectral_former", 8.0, (rate, batch)) for rate in GRID[0] for batch in GRID[1]]


def figure_cells(name: str) -> list[Cell]:
    """Every model of one of the paper's figures, over its rates and batches.

    >>> [len(figure_cells(name)) for name in FIGURES], figure_cells("figure7")[-1].name
    ([75, 50], 'games_transformer_paper@8:0.009:4096')
    """
    data, models, epsilon = FIGURES[name]
    rates, batches = PAPER_GRID
    return [Cell(data, model, epsilon, (rate, batch)) for model in models for rate in rates for batch in batches]
