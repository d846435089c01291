"""Tables that lie in files train to the same bits, are saved and taken up again, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch

from dprec.data import Clicks
from dprec.errors import UserError
from dprec.fit import main as fit_command
from dprec.models import PCTR, DualEncoder, Transformer
from dprec.run.saved.checkpoints import load_run
from dprec.run.trainer import AtomicCheckpointIO
from dprec.sparsity import AdaFEST, Dense, LazyDP, Strategy
from dprec_kernels.file_tensor import in_file
from tests.quiet import SaveAt
from tests.sparsity.test_runs import fit

SEEDED = {"epsilon": None, "noise_multiplier": 1.0, "noise_seed": 5}
CASES: dict[str, tuple[Callable[[], Strategy], dict[str, Any]]] = {
    "lazydp": (LazyDP, {"optimizer": "sgd"}),
    "lazydp-momentum": (lambda: LazyDP(aggregate=False), {"optimizer": "sgd", "momentum": 0.8, "weight_decay": 0.01}),
    "adafest-adam": (lambda: AdaFEST(threshold=2.0), {"optimizer": "adam"}),
    "dense": (Dense, {"optimizer": "sgd"}),
}


def clicks() -> Clicks:
    data = Clicks(dataset="synthetic", synthetic_records=350, table_scale=1e-3, batch_size=40, sampling_seed=1)
    data.setup()
    return data


def model(data: Clicks, memory_map: Path | None, **options: Any) -> PCTR:
    torch.manual_seed(0)
    settings = {"hidden": [4], "learning_rate": 0.1, "weight_decay": 0.0, **options}
    where = None if memory_map is None else str(memory_map)
    return PCTR(13, data.vocabularies, memory_map=where, **settings)


@pytest.mark.full
@pytest.mark.parametrize("name", ["adafest-adam", "lazydp-momentum"])
def test_a_run_is_the_same_to_the_last_bit_and_so_is_a_resumed_one(name: str, tmp_path: Path) -> None:
    make, options = CASES[name]
    weights = []
    for where in (None, tmp_path / "tables"):
        saved, data = tmp_path / f"{where is None}.ckpt", clicks()
        learner = model(data, where, **options)
        start = {name: p.detach().clone() for name, p in learner.named_parameters()}
        settings: dict[str, Any] = {"privacy": SEEDED, "plugins": [AtomicCheckpointIO()], "max_steps": 4}
        fit([make()], data, learner, callbacks=[SaveAt(2, saved)], **settings)
        again = model(data, where, **options)
        fit([make()], clicks(), again, ckpt=saved, **settings)
        for one in (learner, again):
            assert all(in_file(t.weight) == (where is not None) for t in one.tables.tables)  # type: ignore[arg-type]
        weights.append([start, dict(learner.state_dict()), dict(again.state_dict())])
    for one, other in zip(*weights, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not list((tmp_path / "tables").iterdir())  # nobody can look into a table whose rows owe noise


@pytest.mark.parametrize("kind", [lambda **o: DualEncoder(20, 8, **o), lambda **o: Transformer(20, 8, tied=False, **o)])
def test_recommenders_start_with_the_same_values(kind: Any, tmp_path: Path) -> None:
    models = []
    for memory_map in (None, str(tmp_path / "deep" / "er")):
        torch.manual_seed(3)
        models.append(kind(memory_map=memory_map))
    one, other = (dict(m.named_parameters()) for m in models)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert sum(in_file(p) for p in other.values()) == 2


@pytest.mark.full
def test_a_command_trains_continues_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    run, folder = tmp_path / "run", tmp_path / "tables"
    recipe = ["recipes/dlrm_lazydp.yaml", "--data.dataset", "synthetic", "--data.synthetic_records", "350"]
    recipe += ["--data.table_scale", "0.0001", "--data.batch_size", "40", "--model.dim", "4", "--model.bottom", "[4]"]
    recipe += ["--model.top", "[4]", "--trainer.max_steps", "2", "--trainer.enable_progress_bar", "false"]
    assert fit_command([*recipe, "--model.memory_map", str(folder), "--out", str(run)]) == 0
    saved, loaded = load_run(str(run))
    assert any(map(in_file, loaded.parameters()))
    assert all(torch.equal(value, saved["state_dict"][name]) for name, value in loaded.state_dict().items())
    (run / "metrics.json").unlink()
    other = tmp_path / "elsewhere"
    assert fit_command(["--resume", str(run), "--model.memory_map", str(other)]) == 0
    assert other.is_dir()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="model.memory_map is .*file.*; give a folder on a disk with room"):
            DualEncoder(20, 8, memory_map=str(folder))
    with pytest.raises(UserError, match="4e.*GB can be made: (No space|File too large)"):
        DualEncoder(10**12, 1, memory_map=str(tmp_path))


def test_a_folder_where_deleted_files_keep_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where such a file is renamed: rows that owe noise would lie there after a crash."""
    kept = partial(NamedTemporaryFile, delete=False)
    monkeypatch.setattr("dprec_kernels.file_tensor.NamedTemporaryFile", kept)
    with pytest.raises(UserError, match="a deleted file keeps a name there, give a folder on a local disk"):
        DualEncoder(20, 8, memory_map=str(tmp_path))
