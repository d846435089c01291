"""Items described by text: what their vectors are, what users add to the trained map, and new items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dprec.errors import UserError
from dprec.models import TextClassifier, TextItems
from dprec.serving.served import load
from tests.commands.support import strict
from tests.models.runs import private_run
from tests.models.shares import checked_shares
from tests.zoo.recommenders import ITEMS, batch_of

pytestmark = pytest.mark.filterwarnings("ignore:.*items have no text there")
IDS = [f"film{number}" for number in range(1, ITEMS)]


def written(folder: Path) -> str:
    """Titles of two kinds, in another order than the catalogue's; film1 is not there, and film2 has no text."""
    lines = [
        f"film{n},{('war', 'love')[n % 2]} story {n},{('War|Drama', 'Comedy')[n % 2]}" for n in range(ITEMS, 2, -1)
    ]
    (folder / "films.csv").write_text("\n".join(["item,title,genres", *lines, "film2,,"]) + "\n")
    return str(folder / "films.csv")


def model_of(folder: Path, **options: Any) -> TextItems:
    torch.manual_seed(0)
    file, columns = written(folder), ["title", "genres"]
    model = TextItems(ITEMS, file, columns, **{"dim": 6, "text_dim": 10, "blocks": 1, "dropout": 0.0, **options})
    model.embedding.read_texts(file, columns, IDS)
    if model.embedding.own is not None:
        torch.nn.init.normal_(model.embedding.own.weight[1:].detach())
    return model


def test_items_of_like_texts_have_like_vectors(tmp_path: Path) -> None:
    vectors = model_of(tmp_path, text_dim=300).embedding.vectors
    assert not vectors[:3].any()  # the padding, an item that the file lacks, and one without text
    torch.testing.assert_close(vectors[3:].norm(dim=1), torch.ones(ITEMS - 3))
    alike = vectors[3:] @ vectors[3:].T
    kind = torch.arange(3, ITEMS) % 2
    same = (kind[:, None] == kind) & ~torch.eye(ITEMS - 3, dtype=torch.bool)
    assert alike[same].mean() > alike[kind[:, None] != kind].mean() + 0.2


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("negatives", [None, 5])
def test_nobody_adds_more_than_the_norm_and_sums_are_those_of_the_truth(
    own: bool, negatives: int | None, tmp_path: Path
) -> None:
    model, batch = model_of(tmp_path, own=own, negatives=negatives).double(), batch_of(6)
    gradients = checked_shares(model, batch)
    assert gradients["embedding.map"].any()
    assert "embedding.vectors" not in gradients


@pytest.mark.full
def test_a_private_run_recommends_items_that_nobody_met_without_the_file(tmp_path: Path) -> None:
    events = [f"u{user} film{3 + (user + step) % 12}" for user in range(40) for step in range(6)]
    (tmp_path / "log.txt").write_text("\n".join(events) + "\n")
    (tmp_path / "catalogue.txt").write_text("\n".join(IDS))
    file = written(tmp_path)
    settings = {"dim": 8, "blocks": 1, "text_file": file, "text_columns": ["title", "genres"]}
    model = {"class_path": "dprec.models.TextItems", "init_args": settings}
    with pytest.warns(UserWarning, match=f"2 of {len(IDS)} items have no text there"):
        run = private_run(tmp_path, tmp_path / "log.txt", model, catalogue=str(tmp_path / "catalogue.txt"))
    assert f"the texts of items in {file}" in strict(run / "privacy.json")["assumed_public"]
    Path(file).unlink()
    served = load(run)
    assert served.model.embedding.vectors[3:].any(1).all()
    found = served.recommend([["film3", "film4"]], k=len(IDS) - 2)[0].items
    assert {str(item) for item in found} >= {"film20", "film21"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tied": False}, "model.tied: TextItems reads and scores items with the same map"),
        ({"memory_map": "tables"}, "model.memory_map is for tables of items"),
        ({"features": {"genre": 3}, "feature_file": "films.csv"}, "model.features is for tables of items"),
        ({"text_dim": 0}, "model.text_dim is 0"),
        ({"text_columns": []}, "model.text_columns is empty"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        TextItems(**{"items": ITEMS, "text_file": "films.csv", "text_columns": ["title"], **options})
    assert "\n" not in str(caught.value)


def test_files_and_folders_that_are_refused(tmp_path: Path) -> None:
    table = TextItems(ITEMS, "films.csv", ["title"], dim=6).embedding
    with pytest.raises(UserError, match="model.text_file .*: give a CSV file with the columns item, plot"):
        table.read_texts(written(tmp_path), ["plot"], IDS)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds adapters of peft: save the encoder with them merged"):
        TextClassifier(9, 0, 2, encoder=str(tmp_path))
