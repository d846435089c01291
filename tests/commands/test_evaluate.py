from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dprec.data import Catalogue
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.run.saved.checkpoints import load_run
from dprec.run.tasks.ranking import Ranking, popularity_places
from tests.commands.support import answered, strict


def test_gives_what_the_run_reported(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, again = strict(trained / "metrics.json"), answered(capsys, evaluate, str(trained))
    for key in report:
        if "@" in key or key in ("users", "items", "epsilon", "guarantee", "protocol"):
            assert again[key] == pytest.approx(report[key]), key


def test_other_data_is_ranked_in_the_models_own_ids(
    trained: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two users, items met in another order, and one item the model never saw."""
    (here / "new.txt").write_text(
        "\n".join(
            [f"a film{n}" for n in (9, 8, 7)]
            + ["a strange"]
            + [f"a film{n}" for n in (6, 5)]
            + [f"b film{n}" for n in (3, 4, 5, 6)]
        )
    )
    path = trained / "checkpoints/last.ckpt"
    checkpoint, model = load_run(str(path))
    catalogue = Catalogue(checkpoint["dprec"]["catalogue"])
    hits = []
    for history, target in (((9, 8, 7, 6), 5), ((3, 4, 5), 6)):
        ids = torch.tensor([[catalogue.index(f"film{n}") for n in history]])
        with torch.no_grad():
            scores = model.encode(ids)[0, -1] @ model.item_table.T
        scores[[0, *ids[0].tolist()]] = -torch.inf
        hits.append(float(catalogue.index(f"film{target}") in scores.topk(3).indices))
    again = answered(capsys, evaluate, str(trained), "--data.path", "new.txt", "--metrics", "hit@3")
    assert (again["users"], again["items"]) == (2, 12)
    assert again["hit@3"] == sum(hits) / 2


def test_validation_split(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [str(recipe), "--privacy", "null", "--trainer.max_steps", "2", "--out", "run"]
    assert fit([*args, "--data.validation", "true"]) == 0
    test, validation = (answered(capsys, evaluate, "run", "--split", split) for split in ("test", "validation"))
    assert test["split"] == "test"
    assert test["popularity_ndcg@10"] != validation["popularity_ndcg@10"]


def test_popularity_has_no_ties() -> None:
    assert popularity_places(torch.tensor([9.0, 1.0, 3.0, 3.0, 0.0])).tolist() == [-1, 2, 0, 1, 3]


def test_a_recipe_says_what_is_reported(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [str(recipe), "--privacy", "null", "--trainer.max_steps", "2", "--out", "run"]
    assert fit([*args, "--metrics", "recall@5, precision@5,hit@5"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "times popularity in RECALL@5" in said
    report = strict(here / "run/metrics.json")
    found = report["distinct_items"]
    assert f"users hold {found['found']:,} of {found['of']:,} items" in said
    names = [f"{prefix}{name}" for prefix in ("", "popularity_") for name in ("recall@5", "precision@5", "hit@5")]
    names += [f"{name}/all" for name in names]
    assert {key for key in report if "@" in key} == set(names)
    for which in ("", "/all"):
        assert report[f"recall@5{which}"] == report[f"hit@5{which}"] == pytest.approx(5 * report[f"precision@5{which}"])
    assert {key for key in answered(capsys, evaluate, "run") if "@" in key} == set(names)  # as the run did
    again = answered(capsys, evaluate, "run", "--metrics", "recall@20")
    assert {key for key in again if "recall" in key} == {
        f"{prefix}recall@20{which}" for prefix in ("", "popularity_") for which in ("", "/all")
    }


@pytest.mark.full
def test_a_sample_of_users_says_that_it_is_one(
    trained: Path, recipe: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its means lie within a few standard errors of those of all users, and both tables say who was ranked."""
    monkeypatch.setenv("COLUMNS", "200")  # a narrow terminal breaks a table's heads
    all_users = answered(capsys, evaluate, str(trained))
    assert "standard_errors" not in all_users
    some = answered(capsys, evaluate, str(trained), "--data.metrics_users", "40")
    assert (some["evaluated_users"], some["held_out_users"]) == (40, 60)
    assert set(some["standard_errors"]) == {key for key in all_users if "@" in key}
    for name, error in some["standard_errors"].items():
        assert abs(some[name] - all_users[name]) < 4 * error + 1e-9
    assert evaluate([str(trained), "--data.metrics_users", "40"]) == 0
    said = capsys.readouterr().out
    assert "full ranking, 40 of 60 users" in said
    assert " ± " in said
    assert fit([str(recipe), "--data.metrics_users", "30", "--out", "run"]) == 0
    assert "30 of 60 users" in capsys.readouterr().out
    assert strict(here / "run/metrics.json")["evaluated_users"] == 30


def test_lists_are_measured_beside_ranks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The popular items are the same for all but what each has seen, and no list is more popular than theirs."""
    found = answered(capsys, evaluate, str(trained), "--metrics", "mrr@5,coverage@1,novelty@1")
    assert found["popularity_coverage@1/all"] == pytest.approx(1 / 12)
    assert found["novelty@1/all"] >= found["popularity_novelty@1/all"] - 1e-9
    assert 0 < found["mrr@5"] < 1
    assert evaluate([str(trained), "--metrics", "coverage@1,mrr@5"]) == 0
    said = capsys.readouterr().out
    assert "COVERAGE@1" in said
    assert "MRR@5" in said


def test_recommendations_that_collapse_on_few_items_are_told(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(trained)]) == 0
    assert "collapse" not in capsys.readouterr().out
    few = {"first": 10, "users": 22_363, "found": 164, "of": 12_101}
    warning = Ranking().warning({"distinct_items": few})
    assert warning is not None
    assert "the first 10 places of 22,363 users hold only 164 of 12,101 items" in warning
    assert Ranking().warning({"distinct_items": few | {"users": 100}}) is None
    assert Ranking().warning({"distinct_items": few | {"places": 1640}}) is None  # of users who have seen nearly all


@pytest.mark.full
def test_a_log_of_one_user_has_a_delta_that_promises_nothing_and_no_few_items_to_collapse_on(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "one.csv").write_text("user,item,time\n" + "".join(f"u,film{n % 12},{n}\n" for n in range(40)))
    args = [str(recipe), "--data.path", "one.csv", "--data.batch_size", "1", "--privacy", "{epsilon: 4}"]
    assert fit([*args, "--out", "run"]) == 0
    told = capsys.readouterr().out
    says = "warning: δ = 0.5 is the chance that the guarantee fails for somebody, so it promises nothing: train on more"
    assert says in told
    assert "collapse" not in told
    assert plan(args) == 0
    assert says in capsys.readouterr().out
    assert plan([str(recipe)]) == 0
    assert "promises nothing" not in capsys.readouterr().out


def test_the_command_warns_of_a_model_that_knows_one_item(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one dimension there are two orders of items, so all users see one end of it or the other."""
    rows = [f"u{user} item{(user * 7 + step) % 1000}" for user in range(1000) for step in range(8)]
    (here / "log.txt").write_text("\n".join(rows))
    settings = "data: {dataset: file, path: log.txt, batch_size: 100}\nmodel: {dim: 1}\ntrainer: {max_steps: 1}\n"
    (here / "r.yaml").write_text(settings)
    assert fit(["r.yaml", "--out", "run"]) == 0
    told = capsys.readouterr().out
    report = strict(here / "run/metrics.json")["distinct_items"]
    assert report["found"] < 100
    assert f"hold only {report['found']} of {report['of']:,} items, so recommendations collapse on few" in told
    assert told.splitlines()[-2:] == ["run folder: run", "report: run/report.html"]
    assert evaluate(["run"]) == 0
    assert "recommendations collapse on few" in capsys.readouterr().out
