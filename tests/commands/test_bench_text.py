"""The bench of texts: every system steps on the same weights, and AdaFEST noises fewer rows than there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from dprec.bench import main as bench
from dprec.benchmarks import text, text_accuracy


@pytest.mark.full
def test_every_system_has_a_row_and_dense_noise_is_in_every_row() -> None:
    (size,) = text.TINY
    rows = text.compared(size, lambda said: None)
    assert [row["system"] for row in rows] == list(text.SYSTEMS)
    found = {row["system"]: row for row in rows}
    assert found["DP-SGD, fused"]["rows_noised"] == size.words
    assert found["AdaFEST"]["rows_noised"] < size.words
    assert found["PyTorch"]["rows_noised"] is None
    assert all(row["ms_per_step"] > 0 and row["embedding_ms"] > 0 for row in rows)


@pytest.mark.full
@pytest.mark.parametrize("system", text.SYSTEMS)
def test_a_step_moves_the_words_that_it_may(system: str) -> None:
    (size,) = text.TINY
    model, batch = text.classifier(size), text.batch_of(size)
    words = model.encoder.get_input_embeddings().weight
    before = words.detach().clone()
    text.Step(system, model, batch)()
    moved = (words != before).any(1)
    read = torch.zeros(size.words, dtype=torch.bool)
    read[batch.ids.unique()] = True
    if system.startswith("PyTorch"):
        assert moved.any()
        assert not moved[~read].any()
    elif system == "DP-SGD, fused":
        assert moved.sum() == size.words - 1  # all but the padding
    else:
        assert moved.sum() < size.words


@pytest.mark.nightly
def test_what_is_learnt_by_each_way_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").symlink_to(Path(__file__).parents[2] / "recipes")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time only reads
        assert bench(["text-accuracy", "--quick", "--json", "rows.json", "--picture", "drawn/texts.png"]) == 0
        assert (tmp_path / "drawn/texts.png").stat().st_size > 5000
    rows = json.loads(Path("rows.json").read_text())
    assert [row["system"] for row in rows] == list(text_accuracy.METHODS)
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    reductions = {row["system"]: row["gradient_size_reduction"] for row in rows}
    assert reductions["DP-SGD"] == 1
    assert reductions["frozen"] is None
    assert reductions["low rank"] == pytest.approx(200 * 32 / (8 * 232))
    assert min(reductions["AdaFEST"], reductions["FEST"]) >= 1
