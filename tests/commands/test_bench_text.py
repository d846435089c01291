"""The bench of texts: every system steps on the same weights, and AdaFEST noises fewer rows than there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from dprec.benchmarks import text


def test_every_system_has_a_row_and_dense_noise_is_in_every_row(tmp_path: Path) -> None:
    (size,) = text.TINY
    rows = text.compared(size, lambda said: None)
    assert [row["system"] for row in rows] == list(text.SYSTEMS)
    found = {row["system"]: row for row in rows}
    assert found["DP-SGD, fused"]["rows_noised"] == size.words
    assert found["AdaFEST"]["rows_noised"] < size.words
    assert found["PyTorch"]["rows_noised"] is None
    assert all(row["ms_per_step"] > 0 and row["embedding_ms"] > 0 for row in rows)


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
