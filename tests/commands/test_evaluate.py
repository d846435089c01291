from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dprec.data import Catalogue
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.run.checkpoints import restore_model
from dprec.run.folder import read_checkpoint
from dprec.run.tasks.ranking import popularity_scores
from tests.commands.support import strict


def evaluated(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    capsys.readouterr()
    assert evaluate([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_gives_what_the_run_reported(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, again = strict(trained / "metrics.json"), evaluated(capsys, str(trained))
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
    checkpoint = read_checkpoint(path)
    model, catalogue = restore_model(checkpoint, path), Catalogue(checkpoint["dprec"]["catalogue"])
    hits = []
    for history, target in (((9, 8, 7, 6), 5), ((3, 4, 5), 6)):
        ids = torch.tensor([[catalogue.index(f"film{n}") for n in history]])
        with torch.no_grad():
            scores = model.encode(ids)[0, -1] @ model.item_table.T
        scores[[0, *ids[0].tolist()]] = -torch.inf
        hits.append(float(catalogue.index(f"film{target}") in scores.topk(3).indices))
    again = evaluated(capsys, str(trained), "--data.path", "new.txt", "--metrics", "hit@3")
    assert (again["users"], again["items"]) == (2, 12)
    assert again["hit@3"] == sum(hits) / 2


def test_validation_split(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [str(recipe), "--privacy", "null", "--trainer.max_steps", "2", "--out", "run"]
    assert fit([*args, "--data.validation", "true"]) == 0
    test, validation = (evaluated(capsys, "run", "--split", split) for split in ("test", "validation"))
    assert test["split"] == "test"
    assert test["popularity_ndcg@10"] != validation["popularity_ndcg@10"]


def test_popularity_has_no_ties() -> None:
    scores = popularity_scores(torch.tensor([9.0, 1.0, 3.0, 3.0, 0.0]))
    assert scores[1:].argsort(descending=True).tolist() == [1, 2, 0, 3]
    assert len(set(scores[1:].tolist())) == 4
