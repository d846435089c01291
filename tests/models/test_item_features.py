"""Public features of items: vectors that are added where an item is read, clipped and accounted with all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.models import GRU, SequenceRecommender, Transformer
from dprec.models.items.features import VALUES
from dprec.serving.served import load
from tests.commands.support import answered, strict
from tests.models.runs import private_run
from tests.models.shares import checked_shares
from tests.zoo.recommenders import ITEMS, batch_of

FEATURES = {"genre": 11, "decade": 3}
IDS = [f"film{number}" for number in range(1, ITEMS)]


def written(folder: Path) -> str:
    """A file in another order than the catalogue's, with an item that it lacks, and without one that it has."""
    lines = [f"film{n},{'|'.join(f'g{n % k}' for k in (2, 3, 5))},{n % 4 or ''}" for n in range(ITEMS, 1, -1)]
    (folder / "films.csv").write_text("\n".join(["item,genre,decade", *lines]) + "\n")
    return str(folder / "films.csv")


def model_of(kind: Any, file: str, **options: Any) -> SequenceRecommender:
    torch.manual_seed(0)
    made: SequenceRecommender = kind(ITEMS, 6, dropout=0.0, features=FEATURES, feature_file=file, **options)
    made.embedding.read_features(file, IDS)
    features = made.embedding.features
    assert features is not None
    with torch.no_grad():
        features.weight.normal_()
    return made


def test_an_item_is_read_with_the_vectors_of_its_features(tmp_path: Path) -> None:
    table = model_of(Transformer, written(tmp_path)).embedding
    assert table.features is not None
    values = table.values
    assert set(values[:, :VALUES].unique().tolist()) <= set(range(12))
    assert set(values[:, VALUES:].unique().tolist()) <= {0, 12, 13, 14}
    assert not values[:2].any()  # the padding, and an item that the file lacks
    assert (values[2:, :3] > 0).all()  # three genres
    assert not values[4, VALUES]  # without a decade
    read = table(torch.tensor([[7, 0]]))
    own = table.features.weight[values[7][values[7] > 0].long()].sum(0)
    assert torch.allclose(read[0, 0], table.weight[7] + own)
    assert torch.equal(read[0, 1], table.weight[0])


@pytest.mark.parametrize("kind", [Transformer, GRU])
def test_nobody_adds_more_than_the_norm_and_sums_are_those_of_the_truth(kind: Any, tmp_path: Path) -> None:
    model, batch = model_of(kind, written(tmp_path)).double(), batch_of(6)
    gradients = checked_shares(model, batch)
    assert gradients["embedding.features.weight"].any()


@pytest.mark.full
def test_a_private_run_with_features_recommends_without_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [f"u{user} film{1 + (user + step) % 12}" for user in range(40) for step in range(6)]
    (tmp_path / "log.txt").write_text("\n".join(events) + "\n")
    file = written(tmp_path)
    model = {"dim": 8, "blocks": 1, "features": FEATURES, "feature_file": file}
    run = private_run(tmp_path, tmp_path / "log.txt", model)
    assert f"the features of items in {file}" in strict(run / "privacy.json")["assumed_public"]
    Path(file).unlink()
    served = load(run)
    table = served.model.embedding
    assert table.values[2:13].any()
    assert table.features.weight[1:].any()  # trained
    assert len(served.recommend([["film3", "film4"]], k=3)[0].items) == 3
    judged = answered(capsys, evaluate, str(run), "--metrics", "diversity@3")
    assert judged["diversity@3"] > 0
    assert judged["by_length"]["long"]["diversity@3"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": FEATURES}, "model.features is given without model.feature_file"),
        ({"feature_file": "films.csv"}, "model.feature_file is given without model.features"),
        ({"features": {"genre": 0}, "feature_file": "films.csv"}, "model.features gives 'genre' 0 rows"),
        ({"features": {}, "feature_file": "films.csv"}, r"model.features is \{\}: give the columns"),
        ({"features": {"item": 5}, "feature_file": "films.csv"}, "but 'item', each with"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Transformer(ITEMS, 6, **options)


def test_no_model_trains_on_features_that_nobody_has_read() -> None:
    model = Transformer(ITEMS, 6, features=FEATURES, feature_file="films.csv")
    with pytest.raises(UserError, match="the items' features have not been read: call"):
        model.losses(batch_of(2))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "give a CSV file with the columns item, genre, decade: No such file"),
        ("item,genre\nfilm1,a\n", "give a CSV file with the columns item, genre, decade: "),
        ("", "give a CSV file with the columns"),
        (
            "item,genre,decade\nfilm2,a,b\nfilm1,a,b\n film1,a,b\n",
            r"it has two lines of one item, 'film1' \(rows 2 and 3 below",
        ),
        ("item,genre,decade\nfilm1,a,b\n".encode("utf-16"), "films.csv is not UTF-8 text: .*-f utf-16"),
        ("item,genre,decade\nfilm1,a,b\n,a,b\n", "row 2 below the header has no item"),
        ("item,genre,decade\nfilm1,é,b\n".encode("latin1"), "films.csv is not UTF-8 text: .*-f latin1"),
        ("item,genre,decade\nsong1,a,b\n", "it has none of the items in the data"),
    ],
)
def test_files_that_are_refused(text: str | bytes | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "films.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    model = Transformer(ITEMS, 6, features=FEATURES, feature_file="films.csv")
    with pytest.raises(UserError, match=words):
        model.embedding.read_features(str(tmp_path / "films.csv"), IDS)
