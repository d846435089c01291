"""A click log with named columns, private per person, from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld

from dprec import load
from dprec.data import Clicks
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.predict import main as predict
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import strict

pytestmark = pytest.mark.full

STEPS, BATCH, PEOPLE = 3, 12, 40
STRATEGIES = {
    "dp-sgd": [],
    "adafest": [{"class_path": "dprec.sparsity.AdaFEST", "init_args": {"threshold": 0.5, "noise_ratio": 2.0}}],
    "lazydp": [{"class_path": "dprec.sparsity.LazyDP", "init_args": {"least_rows": 30}}],
    "fest": [{"class_path": "dprec.sparsity.FEST", "init_args": {"keep": 40}}],
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    size = 300
    frame = pl.DataFrame(
        {
            "user_id": [f"p{n}" for n in rng.integers(0, PEOPLE, size)],
            "ad_id": rng.integers(0, 60, size),
            "device": rng.choice(["ios", "android", ""], size),
            "price": np.where(rng.random(size) < 0.2, None, rng.random(size).round(2)).astype(str),
            "clicked": rng.integers(0, 2, size),
        }
    )
    frame.write_csv(tmp_path / "shop.csv")
    frame.with_columns(user_id=pl.int_range(size)).write_csv(tmp_path / "strangers.csv")
    data = {
        "dataset": "clicks", "path": str(tmp_path / "shop.csv"), "user_column": "user_id", "batch_size": BATCH,
        "categories": {"ad_id": 50, "device": 8}, "numbers": {"price": "log"}, "records_per_step": 4,
    }  # fmt: skip
    settings = {
        "data": {"class_path": "dprec.data.Clicks", "init_args": data},
        "model": {
            "class_path": "dprec.models.PCTR",
            "init_args": {"hidden": [8], "optimizer": "sgd", "weight_decay": 0.0},
        },
        "privacy": {"epsilon": 4, "verify": 1.0},
        "trainer": {"max_steps": STEPS, "accelerator": "cpu", "enable_progress_bar": False},
    }
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.mark.parametrize("strategy", ["dp-sgd", "fest"])
def test_a_run_is_private_per_user_and_its_epsilon_that_of_dp_accounting(strategy: str, recipe: Path) -> None:
    out = recipe.parent / strategy
    (recipe.parent / "strategy.yaml").write_text(yaml.safe_dump({"privacy": {"sparsity": STRATEGIES[strategy]}}))
    assert fit([str(recipe), str(recipe.parent / "strategy.yaml"), "--out", str(out)]) == 0
    report = strict(out / "metrics.json")
    assert (report["unit"], report["users"], report["steps"]) == ("user", PEOPLE, STEPS)
    assert "records" not in report
    sentence = report["guarantee"]
    assert "-differential privacy per user, where" in sentence
    assert "adding or removing one user's whole history" in sentence
    assert "per record" not in sentence
    assert report["delta"] == 1 / PEOPLE
    if strategy != "fest":  # which makes a release besides
        step = PoissonSampledDpEvent(BATCH / PEOPLE, GaussianDpEvent(report["noise_multiplier"]))
        accountant = pld.PLDAccountant(value_discretization_interval=1e-4).compose(step, STEPS)
        assert report["epsilon"] == pytest.approx(accountant.get_epsilon(1 / PEOPLE), abs=1e-2)


@pytest.mark.parametrize("strategy", ["dp-sgd", "adafest", "lazydp"])
def test_with_one_record_a_person_it_is_the_run_per_record_to_the_last_bit(strategy: str, recipe: Path) -> None:
    (recipe.parent / "strategy.yaml").write_text(yaml.safe_dump({"privacy": {"sparsity": STRATEGIES[strategy]}}))
    seeded = ["--data.sampling_seed", "5", "--privacy.noise_seed", "7", "--data.path", f"{recipe.parent}/strangers.csv"]
    weights = []
    for name, unit in (("people", []), ("records", ["--data.user_column", "null"])):
        out = recipe.parent / name
        assert fit([str(recipe), str(recipe.parent / "strategy.yaml"), *seeded, *unit, "--out", str(out)]) == 0
        weights.append(read_checkpoint(out / "checkpoints/last.ckpt")["state_dict"])
    people, records = weights
    assert people.keys() == records.keys()
    assert all(torch.equal(people[name], records[name]) for name in people)


def test_a_folder_of_parts_is_one_log_of_which_each_row_gets_its_probability(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, out = recipe.parent, recipe.parent / "run"
    assert fit([str(recipe), "--out", str(out)]) == 0
    (here / "new").mkdir()
    shown = pl.read_csv(here / "shop.csv", infer_schema=False).drop("clicked")
    for number, part in enumerate((shown[:100], shown[100:])):
        part.write_csv(here / "new" / f"part-{number}.csv")
    expected = load(out).predict(shown)["probability"].to_numpy()
    capsys.readouterr()
    words = ["--log", str(here / "new"), "--keep", "user_id, ad_id", "--out", str(here / "p.csv")]
    assert predict([str(out), *words]) == 0
    assert f"300 records, on average {expected.mean():.4f}" in capsys.readouterr().out
    found = pl.read_csv(here / "p.csv", schema_overrides={"user_id": pl.String, "ad_id": pl.String})
    assert found.select("user_id", "ad_id").equals(shown.select("user_id", "ad_id"))
    np.testing.assert_allclose(found["probability"].to_numpy(), expected, rtol=1e-6)
    shown.with_columns(row=pl.lit("7")).write_csv(here / "rows.csv")
    assert predict([str(out), "--log", str(here / "rows.csv"), "--keep", "row", "--out", str(here / "rows.tsv")]) == 0
    assert set(pl.read_csv(here / "rows.tsv", separator="\t")["row"]) == {7}
    for words, says in (
        (["--log", str(here / "new"), "--keep", "USER ID", "--out", "x.csv"], "did you mean user_id?"),
        (["--log", str(here / "new"), "--out", str(here / "p.csv")], "exists: give another name"),
        (["--log", str(here / "new")], "--log needs a file to write"),
        (["--text", "a", "--out", "x.csv"], "--out and --keep belong to --log"),
    ):
        assert predict([str(out), *words]) == 2
        assert says in capsys.readouterr().err
    assert not Path("x.csv").exists()


def test_a_run_knows_the_public_values_that_it_was_trained_with(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, out, values = recipe.parent, recipe.parent / "run", recipe.parent / "devices.txt"
    values.write_text("ios\nandroid\nother\n")
    settings = yaml.safe_load(recipe.read_text())
    settings["data"]["init_args"]["categories"]["device"] = str(values)
    recipe.write_text(yaml.safe_dump(settings))
    assert fit([str(recipe), "--out", str(out)]) == 0
    words = ["--log", str(here / "shop.csv"), "--out"]
    assert predict([str(out), *words, str(here / "before.csv")]) == 0
    values.unlink()
    assert predict([str(out), *words, str(here / "after.csv")]) == 0
    assert evaluate([str(out)]) == 0
    assert (here / "before.csv").read_text() == (here / "after.csv").read_text()
    capsys.readouterr()
    assert fit([str(recipe), "--out", str(here / "another")]) == 2
    assert "devices.txt: No such file" in capsys.readouterr().err
    settings["data"]["init_args"]["categories"]["device"] = ["ios", "android", "other"]
    assert Clicks(**settings["data"]["init_args"]).sizes["vocabularies"] == (50, 5)
