"""What a run keeps: its items, its folder, its memory, and one line for what a GPU cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
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
from dprec.run.process import one_line_of_a_card
from dprec.run.saved.folder import RunFolder
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "--data.tokens or --data.micro_batch",
        ),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "--trainer.accelerator cpu"),
    ],
)
def test_a_card_that_stops_says_what_to_do(error: RuntimeError, said: str) -> None:
    with pytest.raises(UserError, match=said), one_line_of_a_card():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), torch.AcceleratorError("CUDA error: no kernel image")])
def test_what_nobody_can_mend_keeps_its_traceback(error: RuntimeError) -> None:
    with pytest.raises(type(error)) as told, one_line_of_a_card():
        raise error
    assert told.value is error


COUNTED = """
import resource
from dprec.run.process import keep_freed_memory
{asked}
for block in range(10):
    bytes([block]) * (1 << 20)  # less than a huge page
    if block == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(asked: str, **variables: str) -> int:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")} | variables
    code = COUNTED.format(asked=asked)
    return int(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_freed_memory_is_not_fresh_again() -> None:
    assert fresh_pages("assert keep_freed_memory()") < 100
    assert fresh_pages("assert not keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="0") > 1000


def test_of_two_runs_that_find_a_folder_free_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    monkeypatch.setattr(RunFolder, "refuse_if_taken", lambda self: None)  # both have looked before either claims
    run.claim("seed: 1\n")
    with pytest.raises(UserError, match="already holds a run"):
        run.claim("seed: 2\n")
    assert "seed: 1" in run.config.read_text()
