from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dprec.data import Catalogue
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.run.saved.checkpoints import load_run
from dprec.run.tasks.ranking import Ranking
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


def test_baselines_without_noise_are_marked_wherever_they_show(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a heading in one line
    found = answered(capsys, evaluate, str(trained), "--baselines", "popularity, ease,itemknn")
    assert list(found["not_private"]) == ["ease", "itemknn"]
    assert not {key for key in found if "ease" in key or "knn" in key}  # nowhere else
    assert found["not_private"]["ease"]["ndcg@10/all"] > found["popularity_ndcg@10/all"]  # who walks along films
    assert evaluate([str(trained), "--baselines", "ease"]) == 0
    assert "ease, NOT PRIVATE" in capsys.readouterr().out
    assert "not_private" not in answered(capsys, evaluate, str(trained))


def test_figures_have_intervals_and_groups_that_make_up_the_whole(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, evaluate, str(trained), "--metrics", "map@5,serendipity@5,coverage@5")
    assert set(found["intervals"]) == {key for key in found if "@" in key and "coverage" not in key}
    for name, (low, high) in found["intervals"].items():
        assert low <= found[name] <= high
    for groups in (found["by_popularity"], found["by_length"]):
        users = sum(each["users"] for each in groups.values())
        assert users == found["users"]
        mean = sum(each["users"] * each["map@5"] for each in groups.values() if each["users"]) / users
        assert mean == pytest.approx(found["map@5"])


def test_recommendations_that_collapse_on_few_items_are_told(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(trained)]) == 0
    assert "collapse" not in capsys.readouterr().out
    few = {"first": 10, "users": 22_363, "found": 164, "of": 12_101}
    warning = Ranking().warning({"distinct_items": few})
    assert warning is not None
    assert "the first 10 places of 22,363 users hold only 164 of 12,101 items" in warning
    assert Ranking().warning({"distinct_items": few | {"users": 100}}) is None
    assert Ranking().warning({"distinct_items": few | {"places": 1640}}) is None  # of users who have seen nearly all
