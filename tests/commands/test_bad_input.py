"""Every mistake costs one line and exit code 2, and changes nothing on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.prepare import main as prepare
from dprec.recommend import main as recommend
from dprec.report import main as report
from dprec.tune import main as tune
from tests.commands.support import refused

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "fit": fit,
    "plan": plan,
    "prepare": prepare,
    "evaluate": evaluate,
    "recommend": recommend,
    "report": report,
    "tune": tune,
}

OWN = "tests.commands.support"

# command line -> what its one line must say; RECIPE and RUN stand for good ones
TABLE = [
    ("prepare s3://shop/log.csv", "the copy of s3://shop/log.csv is deleted when the process ends: give --out FOLDER"),
    # recipes and keys
    ("fit nowhere.yaml", "nowhere.yaml"),
    ("fit RECIPE stray", "stray"),
    ("fit --seed 3", "no recipe"),
    ("fit empty.yaml", "holds no settings"),
    ("fit broken.yaml", "not valid YAML"),
    ("fit RECIPE --sead 3", "command line: unknown key 'sead'; did you mean seed?"),
    ("fit twice.yaml", "gives 'dim' twice in one block (lines 2 and 4)"),
    *((f"fit RECIPE {name}.yaml", "write `privacy: null`") for name in ("hollow", "braces")),
    ("fit RECIPE --seed -1", "seed is -1"),
    ("fit RECIPE --model.dict_kwargs {}", "unknown key 'model.dict_kwargs'"),
    ("fit RECIPE --seed", "--seed needs a value"),
    (
        "fit RECIPE --model.negatives x",
        "give a whole number or Literal['in-batch'",
    ),
    ("fit RECIPE --model.dropout null", "model.dropout is null: give a number"),
    ("fit RECIPE --model.network_scale 0", "model.network_scale is 0.0: give a number from 1e-06 to 1"),
    ("fit RECIPE --data.dataset netflix", "data.dataset is 'netflix': give Literal['file', 'synthetic'"),
    # classes
    ("fit RECIPE --model Transformr", "did you mean Transformer?"),
    ("fit RECIPE --model nowhere.Model", "no module 'nowhere'"),
    ("fit RECIPE --model torch.nn.Linear", "not a Learner"),
    ("fit RECIPE --model tests.commands.support.Unwritten", "Unwritten lacks encode"),
    *(
        (f"fit RECIPE --model {OWN}.{name}", "model.width is not given: add --model.width")
        for name in ("Needing", "NeedingOfAType")
    ),
    (
        "fit RECIPE --privacy.sparsity AdaFEST --privacy.sparsity.noise_ratio 0",
        "error: privacy.sparsity: AdaFEST.noise_",
    ),
    ("fit RECIPE switched.yaml", "switched.yaml: privacy is True: give its settings, one a line"),
    ("report tuned", "tuned holds no metrics.json, since it holds the runs of dprec tune: give tuned/best"),
    ("fit RECIPE nothing_kept.yaml", "error: privacy.sparsity: FEST.keep is 0: give a whole number above 0"),
    ("fit RECIPE --privacy.sparsity FESTT", "privacy.sparsity is 'FESTT': give Strategy or list["),
    ("fit RECIPE --privacy.sparsity FESTT", "null; did you mean FEST?"),
    ("fit RECIPE --privacy.sparsity [AdaFEST", "privacy.sparsity is '[AdaFEST'"),
    ("fit RECIPE --privacy.sparsity torch.nn.Linear", "privacy.sparsity is 'torch.nn.Linear': give Strategy or"),
    ("fit RECIPE --privacy.sparsity FEST --privacy.sparsity.kep 3", "Option 'kep' is not accepted; did you mean keep?"),
    ("fit RECIPE beside.yaml", "privacy.sparsity: Problem with given class_path"),
    ("fit RECIPE --privacy.sparsity Sparse", "; give one of AdaFEST, Dense, EANA, ExponentialSelection, FEST,"),
    ("fit RECIPE --model .x", "model.class_path is '.x', which is not the name of a class: remove the extra dot"),
    ("tune RECIPE --try model.dim=[1,2", "--try model.dim=[1,2: it is not valid YAML: look for a bracket"),
    ("fit RECIPE --metrics ndcg@99999999999999999999", "no list is so long: give a smaller number"),
    ("plan RECIPE --json=false", "argument --json: ignored explicit argument"),
    # data
    ("fit RECIPE --data.path missing.csv", "missing.csv"),
    ("plan RECIPE --data.dataset movielens-1m --data.path nowhere --data.on_missing stand-in", "is not in nowhere"),
    ("fit RECIPE --data.path one.csv", "the catalogue has 1 item"),
    ("fit RECIPE --data.path twice.csv", "twice.csv has two columns 'item': rename one"),
    ("fit RECIPE --data.metrics_users 0 --data.path missing.csv", "data.metrics_users is 0"),  # before data is read
    ("plan RECIPE --users 10 --data.batch_size 20", "10"),
    ("plan RECIPE --data pytorch_lightning.demos.boring_classes.BoringDataModule --users 10", "--users"),
    # privacy
    ("fit RECIPE --privacy.epsilon 0", "privacy.epsilon is 0"),
    ("fit RECIPE --privacy.epsilon nan", "privacy.epsilon is 'nan': give a number"),
    ("fit RECIPE --privacy.delta 1", "privacy.delta is 1"),
    ("fit RECIPE --privacy.noise_multiplier -1", "privacy.noise_multiplier is -1"),
    ("fit RECIPE --privacy.max_norm 0", "privacy.max_norm is 0"),
    ("fit RECIPE --privacy.epsilon null", "neither epsilon nor noise_multiplier"),
    ("fit RECIPE --privacy.epsilon 0.1 --privacy.noise_multiplier 0.5", "one step"),
    ("plan RECIPE --privacy null", "no privacy block"),
    # trainer
    ("fit RECIPE --trainer.max_steps -3", "trainer.max_steps is -3"),
    ("fit RECIPE --trainer.check_val_every_n_epoch 0", "trainer.check_val_every_n_epoch is 0"),
    ("fit RECIPE --trainer.devices 2 --trainer.strategy ddp_spawn", "trainer.strategy cannot start processes by spawn"),
    ("fit RECIPE --trainer.accumulate_grad_batches 2", "trainer.accumulate_grad_batches"),
    ("fit RECIPE --trainer.gradient_clip_val 1", "trainer.gradient_clip_val"),
    ("fit RECIPE --trainer.precision 16-mixed", "trainer.precision"),
    ("fit RECIPE --trainer.overfit_batches 1", "trainer.overfit_batches"),
    ("fit RECIPE --trainer.reload_dataloaders_every_n_epochs 1", "trainer.reload_dataloaders"),
    ("fit RECIPE --trainer.fast_dev_run true", "trainer.fast_dev_run"),
    ("fit RECIPE --trainer.accelerator abacus", "invalid accelerator name: `accelerator='abacus'`"),
    ("fit RECIPE --trainer.accelerator tpu", "torch_xla"),
    *(
        []
        if torch.cuda.is_available()
        else [("fit RECIPE --trainer.accelerator gpu", "torch finds no GPU here: give cpu")]
    ),
    # run folders and checkpoints
    ("fit RECIPE --out RUN", "already holds a run"),
    ("fit RECIPE --out good.csv", "is a file"),
    ("fit --resume nowhere", "no run to resume"),
    ("evaluate nowhere", "no run at"),
    ("evaluate .", "holds no checkpoints"),
    ("evaluate half.ckpt", "cannot be read as a checkpoint"),
    ("evaluate foreign.ckpt", "not a checkpoint of dprec"),
    # using a run
    ("evaluate RUN --split train", "test or validation"),
    ("evaluate RUN --split validation --data.validation false", "no validation items"),
    ("fit RECIPE --metrics ndcg@10,gain@10", "unknown metric 'gain@10'"),
    ("fit RECIPE --baselines bpr", "unknown baseline 'bpr'"),
    ("fit RECIPE --metrics diversity@10", "set model.features and model.feature_file"),
    ("evaluate RUN --privacy.epsilon 3", "privacy.epsilon"),
    ("recommend RUN", "--history"),
    ("recommend RUN --history film1 -k 0", "0 does not conform to restriction v>0"),
    ("recommend RUN --history film1 --users log.txt", "give one of --history"),
    ("recommend RUN --history film1 --out a.csv", "belong to --users"),
    ("recommend RUN --users log.txt", "add --out answers.parquet"),
    ("recommend RUN --file missing.txt", "missing.txt"),
    ("recommend RUN --file empty.txt", "is empty"),
    ("recommend RUN --file bad.jsonl", "bad.jsonl, line 2"),
    ("recommend RUN --file good.csv", "good.csv starts with the header 'user,item,time': it is a log, not histories"),
]


@pytest.fixture(scope="module")
def prepared(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of all lines: none may change it."""
    here = tmp_path_factory.mktemp("mistakes")
    (here / "empty.yaml").write_text("")
    (here / "broken.yaml").write_text("data: {path: [\n")
    (here / "twice.yaml").write_text("model:\n  dim: 8\n  blocks: 1\n  dim: 16\n")
    (here / "braces.yaml").write_text("privacy: {}\n")
    (here / "hollow.yaml").write_text("privacy:\n  # epsilon: 8\n")
    nothing_kept = "{class_path: FEST, init_args: {keep: 0}}"
    (here / "nothing_kept.yaml").write_text(f"privacy: {{epsilon: 8, sparsity: [{nothing_kept}]}}\n")
    (here / "switched.yaml").write_text("privacy: true\n")
    (here / "tuned" / "best").mkdir(parents=True)
    (here / "folder").mkdir()
    (here / "one.csv").write_text("user,item,time\n" + "".join(f"u{n % 20},film,{n}\n" for n in range(100)))
    (here / "empty.txt").write_text("")
    (here / "twice.csv").write_text("user,item,film,item,time,stars,stars\na,x,y,z,1,2,3\n")
    (here / "beside.yaml").write_text("privacy: {epsilon: 8, sparsity: {class_path: FEST, keep: 3}}\n")
    rows = "".join(f"u{n % 20},film{n % 7},{n}\n" for n in range(100))
    (here / "good.csv").write_text("user,item,time\n" + rows)
    (here / "bad.jsonl").write_text('["film1"]\n["film2"\n')
    whole = (trained / "checkpoints/last.ckpt").read_bytes()
    (here / "half.ckpt").write_bytes(whole[: len(whole) // 2])
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, here / "foreign.ckpt")
    return here


@pytest.fixture
def files(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(prepared)
    return prepared


def contents(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("line", "says"), TABLE, ids=[line for line, _ in TABLE])
def test_one_line_and_nothing_changed(
    line: str, says: str, files: Path, recipe: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *words = line.split()
    places = {"RECIPE": str(recipe), "RUN": str(trained)}
    before = contents(files, trained)
    said = refused(capsys, COMMANDS[command], [places.get(word, word) for word in words])
    assert says in said
    assert len(said) < 400
    assert contents(files, trained) == before


@pytest.mark.parametrize("accelerator", ["mps", "gpu"])
def test_metal_is_refused(accelerator: str, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = {"cuda.is_available": False, "backends.mps.is_available": True}
    with ExitStack() as stack:
        for name, answer in there.items():
            stack.enter_context(mock.patch(f"torch.{name}", return_value=answer))
        assert fit([str(recipe), "--trainer.accelerator", accelerator]) == 2
    assert f"trainer.accelerator is {accelerator}, and Metal has no float64" in capsys.readouterr().err
