"""Items are chosen by their public features: in Python, over HTTP and by the command alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dprec.data import Catalogue
from dprec.errors import UserError
from dprec.models import Transformer
from dprec.serving.served import Served
from dprec.serving.service import Limits, request_of

ITEMS = ["alien", "brazil", "casablanca", "dune", "7"]
FILE = """decade,item,genre
1970,alien,horror|space
1980,brazil,comedy
,casablanca,drama
1980,other,comedy
1980,7, comedy |drama
"""


@pytest.fixture
def served(tmp_path: Path) -> Served:
    torch.manual_seed(0)
    (tmp_path / "films.csv").write_text(FILE)
    return Served(Transformer(6, dim=8, max_length=4), Catalogue(ITEMS), {}, str(tmp_path / "films.csv"))


@pytest.mark.parametrize(
    ("only", "items"),
    [
        ({"genre": "comedy"}, {"brazil", "7"}),
        ({"genre": ["space", "drama"]}, {"alien", "casablanca", "7"}),
        ({"genre": "drama", "decade": 1980}, {"7"}),
        ({"genre": "western"}, set()),
        ({}, set(ITEMS)),
    ],
)
def test_only_items_with_these_values_are_chosen(served: Served, only: dict, items: set[str]) -> None:
    (found,) = served.recommend([["dune"]], only=only, exclude_seen=False)
    assert set(found.items) == items
    (few,) = served.recommend([["dune"]], only=only, items=["7", "alien"], exclude=["alien"])
    assert set(few.items) == items & {"7"}
    request, _ = request_of(json.dumps({"history": ["dune"], "only": only, "exclude_seen": False}).encode(), Limits())
    ((_, *_), (question,)) = served.reader.read(request)
    assert served.answer([question])[0].items == found.items


def test_a_mistake_is_one_line(served: Served, tmp_path: Path) -> None:
    for only in ({"gendre": "comedy"}, "comedy"):
        with pytest.raises(UserError, match="only must name columns of .*: decade, genre"):
            served.recommend([[]], only=only)
    with pytest.raises(UserError, match="give a CSV file as features, with a column item"):
        Served(served.model, served.catalogue, {}).recommend([[]], only={"genre": "comedy"})
    (tmp_path / "bad.csv").write_text("film,genre\na,b\n")
    with pytest.raises(UserError, match="bad.csv: give a CSV file with the column item"):
        Served(served.model, served.catalogue, {}, str(tmp_path / "bad.csv"))
