"""The studies behind the documents run, and what they measure is what they say."""

from __future__ import annotations

import ast
import doctest
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from dprec import Clicks, Sequences, TextItems
from dprec.convex.estimator import Logistic, minimum
from tests.commands.support import ROOT, environment
from tests.kernels.interpreter import outside
from tests.studies import NAMES, STUDIES, load, run

MEASURED = ROOT / "docs" / "measured"
PUBLIC = {  # packages whose own names a reader may rely on, and what documents name besides
    "dprec", "dprec.auditing", "dprec.convex", "dprec.data", "dprec.errors", "dprec.metrics", "dprec.models",
    "dprec.models.learning.optimizers", "dprec.sparsity", "dprec.training.loaders",
}  # fmt: skip
DEEPER = {  # what a study is about: a formula, a release or a kernel that no public name reaches
    "activations": ["dprec.models.networks"],
    "convex": ["dprec.accounting", "dprec.convex", "dprec.data"],
    "gpu_compile": ["dprec_kernels"],
    "eana": ["dprec.sparsity.revealed"],
    "elsewhere": ["dprec.gradients"],
    "normals": ["dprec.noise", "dprec_kernels"],
    "private_als": ["dprec.accounting", "dprec.data", "dprec.models.spectral", "dprec.models.items"],
    "correlated_noise": ["dprec.accounting"],
    "random_allocation": ["dprec.accounting"],
    "shares": ["dprec.accounting", "dprec.data", "dprec.models.items", "dprec.noise"],
    "text_accuracy": ["dprec.run.saved"],
    "text_items": ["dprec.data.datasets", "dprec.metrics.ranking"],
}


@pytest.mark.parametrize("name", [*NAMES, "study"])
def test_studies_use_what_dprec_offers_everybody(name: str) -> None:
    tree = ast.parse((STUDIES / f"{name}.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    for module in {module for module in modules if module.startswith("dprec")} - PUBLIC:
        assert module.startswith(tuple(DEEPER.get(name, ["nothing"]))), module


@pytest.mark.parametrize("name", [*NAMES, "study"])
def test_examples_in_studies_are_true(name: str) -> None:
    if name.startswith("text"):
        pytest.importorskip("transformers")
    assert doctest.testmod(load(name)).failed == 0


@pytest.mark.full
def test_rows_that_were_measured_are_shown_again(tmp_path: Path) -> None:
    file = MEASURED / "sparsity.json"
    command = [sys.executable, str(STUDIES / "sparsity.py"), "--rows", str(file), "--picture", "best.png"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "best reduction within a loss of AUC" in done.stdout
    assert (tmp_path / "best.png").stat().st_size > 5_000


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_catalogue_memory(tmp_path: Path) -> None:
    """No step of dprec keeps items x positions, as PyTorch does; a private one checks itself in float64."""
    rows = run(tmp_path, "catalogue_memory")
    peaks = {row["system"]: row["peak_mb"] for row in rows if row["items"] == 100_000}
    scores = 4 * 100_000 * rows[0]["tokens"] / 2**20
    assert peaks["PyTorch non-private"] > scores
    assert peaks["dprec non-private"] < scores / 2
    assert peaks["dprec private"] < peaks["PyTorch non-private"] / 2


@pytest.mark.full
@pytest.mark.parametrize("which", ["rates", "descent"])
def test_convex(which: str, tmp_path: Path) -> None:
    study = load("convex")
    rows = run(tmp_path, "convex", "--study", which, "--picture", "picture.png")
    found = {row["study"] for row in rows}
    if which == "descent":
        assert found == {study.RISK, study.NORM}
        assert all(row["value"] > 0 for row in rows)
    else:
        assert len(found) == 5
        errors = {row["method"]: row["value"] for row in rows if row["study"] == "error by records"}
        assert errors["projection"] < 0.5 * errors["plain Gaussian"]
        assert all(0 <= row["auc"] <= 1 and row["value"] > 0.5 for row in rows if row["study"] == "clicks")
    assert (tmp_path / "picture.png").stat().st_size > 5_000


def test_excess_risks_are_above_the_least_there_is() -> None:
    study = load("convex")
    records = study.Records(3_000, 50, np.random.default_rng(1))
    best = minimum(records.features, records.clicked, Logistic(), 1e-9, 1e-9, order=2).weights
    assert records.above_records(best) == pytest.approx(0, abs=1e-6)
    assert records.above_records(best + 0.1) > 1e-4
    assert records.above_population(records.truth) == pytest.approx(0, abs=1e-12)
    many = study.Records(1_000_000, 50, np.random.default_rng(1))  # the same places and odds
    other = many.truth / 2
    assert records.above_population(other) == pytest.approx(many.risk(other) - many.risk(many.truth), rel=0.02)


@pytest.mark.full
def test_eana_theorem(tmp_path: Path) -> None:
    rows, theory = run(tmp_path, "eana", "--picture", "picture.png"), load("eana")
    assert len(rows) == 15
    for row in rows:
        exact = theory.epsilon(theory.added, 1e-7, row["count"], row["sigma"], width=10.0)
        assert row["exact"] == (pytest.approx(exact) if np.isfinite(exact) else None)
    ratios = [row["ratio"] for row in rows if row["sigma"] == 0.1]
    assert ratios == sorted(ratios, reverse=True), "the more users, the nearer to DP-SGD"
    assert ratios[-1] < 1.1
    assert (tmp_path / "picture.png").stat().st_size > 5_000


@pytest.mark.full
def test_eana_context(tmp_path: Path) -> None:
    """Five systems are trained, and read again the second time; the log has its three features."""
    rows = run(tmp_path, "eana", "--study", "context", "--runs", "runs/eana")
    assert [(row["system"], row["noise"]) for row in rows] == [
        ("SGD", None), ("DP-SGD", 0.01), ("EANA", 0.01), ("DP-SGD", 0.001), ("EANA", 0.001),
    ]  # fmt: skip
    assert all(0 <= row["precision@1"] <= 1 and row["steps"] == 2 for row in rows)
    assert run(tmp_path, "eana", "--study", "context", "--runs", "runs/eana") == rows
    config = (tmp_path / "runs/eana/eana-0.01/config.yaml").read_text()
    assert all(words in config for words in ("dprec.sparsity.EANA", "unigram: 2000", "context_vectors*"))
    frame = load("eana").invented(200, 1_000)
    own = frame.group_by("person").agg(pl.col("entity").n_unique())["entity"].mean()
    assert own is not None
    assert own < 18  # of 25 activities: drawn evenly from 1,000, 24.7 would differ
    first = frame.filter(pl.col("person") == 0).sort("time")
    words = first["unigram"].to_list()
    assert first["bigram"].to_list()[1:] == [f"{a} {b}" for a, b in pairwise(words)]


@pytest.mark.full
def test_normals(tmp_path: Path) -> None:
    """Each row's time stands beside what memory takes, and each source fills all of its memory."""
    for row in run(tmp_path, "normals"):
        assert row["millions_per_second"] == pytest.approx(1e3 / row["ns"])
    study = load("normals")
    assert {"dprec", "torch's generator", "numpy's Philox"} <= set(study.sources(1 << 17))
    for key in study.sources(1 << 17):
        with pytest.MonkeyPatch.context() as patch:
            numbers = torch.full((1024, 128), 1e-9)
            patch.setattr(study.torch, "ones", lambda *shape, own=numbers: own)
            study.sources(1 << 17)[key]()
        assert (numbers != torch.tensor(1e-9)).all()


@pytest.mark.full
def test_shares(tmp_path: Path) -> None:
    rows = run(tmp_path, "shares", "--picture", "picture.png")
    assert next(row["median_error"] for row in rows if row["epsilon"] is None) < 0.05
    bins = run(tmp_path, "shares", "--study", "histogram")
    data = Sequences(dataset="synthetic", synthetic_users=300, max_length=50, validation=False)
    data.setup("fit")
    spans = zip(data.training.starts, data.training.ends, strict=True)
    met = [set(data.training.items[start:end].tolist()) for start, end in spans]
    counts = np.array([sum(item in own for own in met) for item in range(1, data.items)])
    for row in bins:
        inside = (counts >= row["users_from"]) & (counts <= row["users_to"])
        assert row["items"] == inside.sum()
        assert row["events"] == pytest.approx(counts[inside].sum() / counts.sum())
    assert sum(row["items"] for row in bins) == data.items - 1


@pytest.mark.full
def test_sparsity_strategies(tmp_path: Path) -> None:
    """Finished runs are read again; a folder with a run of other settings is refused."""
    rows = run(tmp_path, "sparsity", "--runs", "runs", "--picture", "picture.png")
    assert [row["system"] for row in rows] == ["DP-SGD", "FEST", "FEST"]
    assert (rows[0]["auc_loss"], rows[0]["gradient_size_reduction"], rows[1]["rows_noised"]) == (0, 1, 100)
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert run(tmp_path, "sparsity", "--runs", "runs") == rows
    with pytest.raises(AssertionError, match="holds a run with other settings"):
        run(tmp_path, "sparsity", "--runs", "runs", "--trainer.max_steps", "3")


def test_the_order_of_strategies_was_measured_at_the_points_of_its_study() -> None:
    rows = json.loads((MEASURED / "sparsity_order.json").read_text())
    study = load("sparsity")
    assert [(row["system"], row["setting"]) for row in rows] == [point[:2] for point in study.order()]
    best = {(row["system"], row["loss"]): row["best"] for row in study.best_reductions(rows)}
    assert best["FEST, gumbel", 0.01] < best["AdaFEST", 0.01] < best["FEST, gaussian", 0.01]  # as docs/papers.md has it


def test_rows_without_a_gradient_are_those_that_no_record_looks_up() -> None:
    """Counted from the ids of the batches alone, where everybody is in every batch."""
    data = Clicks(
        dataset="synthetic", synthetic_records=300, table_scale=1e-3, batch_size=250, test_days=1, sampling_seed=3
    )
    rows = load("sparsity").features(data, 1)
    ids = [set() for _ in data.vocabularies]  # type: ignore[var-annotated]
    for batch in next(iter(data.train_dataloader())):
        for feature, own in enumerate(batch.categories.transpose(0, 1)):
            ids[feature] |= set(own.flatten().tolist()) - {-1}
    assert rows[-1]["rows"] == sum(data.vocabularies)
    assert [row["rows"] for row in rows[:-1]] == sorted(data.vocabularies, reverse=True)[:5]
    for row in rows[:-1]:
        here = len(ids[int(row["feature"].split()[1]) - 1])
        assert 0.9 * here <= row["touched"] <= here  # a vector's whole gradient is 0 where the small network is off


@pytest.mark.full
def test_text_items(tmp_path: Path) -> None:
    """Trained, it ranks new items by what users of others chose, well above chance."""
    rows = run(tmp_path, "text_items")
    assert [row["model"] for row in rows] == ["TextItems", "TextItems", "chance"]
    study = load("text_items")
    data = study.invented(1500, 240, 200, str(tmp_path), sampling_seed=0)
    torch.manual_seed(0)
    model = TextItems(data.items, f"{tmp_path}/items.csv", ["title"], dim=16, blocks=1, learning_rate=0.01)
    study.train(model, data, 60, epsilon=None)
    assert study.judged(model, data)["ndcg_new"] > 1.4 * study.judged(None, data)["ndcg_new"]


ADAPTER = """
import torch
from torch import nn

def public(layer):
    def build(users):
        ids = {"ids": torch.arange(3 * users).view(users, 3) % 7}
        model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), layer())
        return model, lambda model, batch: model(batch["ids"]).square().sum(1), ids
    return build

class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(3, 12))
    def forward(self, x):
        return torch.cdist(x, self.rows)

MODELS = {"linear": public(lambda: nn.Linear(12, 2)), "cdist": public(Nearest),
          "norm": public(lambda: nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 2)))}
"""


@pytest.mark.full
def test_elsewhere(tmp_path: Path) -> None:
    """By rule, user by user or refused, and never another sum than autograd's."""
    (tmp_path / "adapter.py").write_text(ADAPTER)
    rows = run(tmp_path, "elsewhere", "--adapter", "adapter.py")
    assert [row["way"] for row in rows] == ["by rule", "user by user", "refused"]
    assert all(row["error"] < 1e-5 for row in rows[:2])
    assert "batch_norm" in rows[2]["says"]


def reductions(rows: list[dict]) -> bool:
    found = {row["system"]: row["gradient_size_reduction"] for row in rows}
    low_rank = pytest.approx(200 * 32 / (8 * 232))
    return (
        found == {**found, "DP-SGD": 1, "frozen": None, "low rank": low_rank} and found["AdaFEST"] >= 1 <= found["FEST"]
    )


RUNS: dict[str, tuple[list[str], Callable[[list[dict]], bool]]] = {  # what a study is asked, and what its rows have
    "private_als": (
        ["--epsilons", "5", "--data", "movielens"],
        lambda rows: len(rows) == 1 and 0 < rows[0]["ndcg@10"] < 1,
    ),
    "activations": ([], lambda rows: all(row["1000000"] == pytest.approx(row["analytic"], rel=0.01) for row in rows)),
    "adafest": ([], lambda rows: [row["system"] for row in rows[:3]] == ["AdaFEST", "DP-SGD, fused", "AdaFEST"]),
    "nearest_items": (
        [],
        lambda rows: len(rows) == 4 and 0 < rows[0]["recall"] <= rows[3]["recall"],
    ),
    "nights": ([], lambda rows: len(rows) == 6 and 0 < rows[0]["epsilon"] < rows[3]["epsilon"]),
    "processes": ([], lambda rows: rows[0]["ratio"] == 1 and rows[1]["users_per_second"] > 0),
    "correlated_noise": ([], lambda rows: rows[0]["error"] == pytest.approx(rows[0]["sigma"] * 4.5**0.5)),
    "random_allocation": ([], lambda rows: rows[0]["ratio"] == pytest.approx(1, abs=0.03)),
    "sparsity": (
        ["--study", "periods", "--runs", "runs"],
        lambda rows: [row["period_days"] for row in rows] == [1, 1, 18, 18],
    ),
    "table_memory": ([], lambda rows: 0.9 < rows[0]["times_table"] < 1.5),  # not less than the table
    "text_accuracy": ([], reductions),
}
NEEDS = {"nearest_items": "faiss", "random_allocation": "PLD_accounting"}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
@pytest.mark.parametrize("name", RUNS)
def test_a_study_runs_and_measures(name: str, tmp_path: Path) -> None:
    if name.startswith("text"):
        pytest.importorskip("transformers")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    words, holds = RUNS[name]
    rows = run(tmp_path, name, *words)
    assert rows
    assert holds(rows), rows


@pytest.mark.full
def test_models_are_compared_on_users_who_are_held_out_whole(tmp_path: Path) -> None:
    rows = run(tmp_path, "private_als", "--protocol", "strong", "--epsilons", "5")
    assert [row["model"] for row in rows if row.get("epsilon") == 5] == ["sequences", "PrivateALS"]
    assert {row["model"] for row in rows if "epsilon" not in row} == {
        f"{name}, not private" for name in ("popularity", "itemknn", "ease")
    }
    assert all(0 < row[name] < 1 for row in rows for name in ("recall@20", "recall@50", "ndcg@100"))


@outside
@pytest.mark.full
def test_gpu_compile(tmp_path: Path) -> None:
    """Kernels compile without spills, except those that are faster so; docs/measured/gpu_compile.json has all sizes."""
    rows = run(tmp_path, "gpu_compile")
    assert len({row["kernel"] for row in rows}) == 13
    assert all(row["kernel"].startswith("catalogue_softmax") for row in rows if row["spilled"])
    assert all(0 < row["registers"] <= 255 and row["shared"] <= 99 * 1024 for row in rows)


def test_every_study_has_a_test() -> None:
    tests = ("test_studies", "test_dpformer_tables", "test_peers")
    text = "".join((ROOT / "tests" / f"{name}.py").read_text() for name in tests)
    held = [*RUNS, *re.findall(r"(?:load|run|spec_from_file_location)\((?:tmp_path, )?\"(\w+)\"", text)]
    assert set(NAMES) - set(held) <= {"eight_logs"}, "tables hold it"
