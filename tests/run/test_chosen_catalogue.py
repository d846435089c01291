"""Items that a run of one's own chooses: a checkpoint keeps them, and nobody who goes on chooses again unpaid."""

from __future__ import annotations

from pathlib import Path

import polars
import pytest
import pytorch_lightning as pl
import torch

from dprec import Privacy
from dprec.data import Sequences
from dprec.errors import UserError
from dprec.models import Transformer
from dprec.run.planning import settle_catalogue
from tests.quiet import trainer

LOG = polars.DataFrame(
    [(u, f"i{(u * k) % 12}", k) for u in range(60) for k in range(8)], ["user", "item", "time"], orient="row"
)


def begun() -> tuple[Sequences, Privacy]:
    return Sequences.of(LOG, catalogue="private", batch_size=10, min_events=0, sampling_seed=1), Privacy(epsilon=20.0)


def fit(data: Sequences, privacy: Privacy, steps: int, checkpoint: Path | None = None) -> pl.Trainer:
    data.setup("fit")
    run = trainer(privacy, max_steps=steps)
    model = Transformer(**data.sizes, dim=4)
    run.fit(model, datamodule=data, ckpt_path=None if checkpoint is None else str(checkpoint))
    return run


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Sequences, Privacy]:
    data, privacy = begun()
    settle_catalogue(data, privacy)
    file = tmp_path / "half.ckpt"
    fit(data, privacy, 3).save_checkpoint(file)
    return file, data, privacy


@pytest.mark.full
def test_who_goes_on_keeps_the_items_and_their_price(kept: tuple[Path, Sequences, Privacy]) -> None:
    file, before, paid = kept
    data, privacy = begun()
    settle_catalogue(data, privacy, torch.load(file, weights_only=True))
    assert data.catalogue_ids == before.catalogue_ids
    fit(data, privacy, 3, file)
    assert privacy.ledger.events == paid.ledger.events
    assert privacy.spent == paid.spent


def test_who_chooses_again_is_refused(kept: tuple[Path, Sequences, Privacy]) -> None:
    """Whether the list is another or, by chance, the same."""
    file, before, _ = kept
    for same in (False, True):
        data, privacy = begun()
        settle_catalogue(data, privacy)
        data.choose(before.catalogue_ids if same else [*before.catalogue_ids[:-1], "another"])
        with pytest.raises(UserError, match="settle_catalogue\\(data, privacy, torch.load\\(CHECKPOINT\\)\\)"):
            fit(data, privacy, 3, file)


def test_a_checkpoint_without_a_choice_is_refused() -> None:
    with pytest.raises(UserError, match="has chosen no items"):
        settle_catalogue(*begun(), {"callbacks": {}})
