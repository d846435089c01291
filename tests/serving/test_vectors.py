"""Vectors of items and users score as the model does; similar items are those of the largest cosine."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import Catalogue
from dprec.errors import UserError
from dprec.models import DPFormer, Spectral, Transformer
from dprec.models.items.succession import Repeats
from dprec.notices import kept
from dprec.serving.served import Served
from tests.commands.support import ROOT
from tests.serving.test_served import Walk
from tests.zoo import tagged
from tests.zoo.recommenders import ITEMS, MODELS

IDS = [f"film {n}" for n in range(1, ITEMS)]
HISTORIES = [["film 3"], ["film 7", "film 1", "film 20", "film 4"], [], ["film 9"] * 5, ["what"]]


def served(model: Any) -> Served:
    return Served(model.eval(), Catalogue(IDS), {})


@pytest.mark.parametrize("name", [*tagged("exports"), *tagged("unrolled")])
def test_products_of_vectors_are_the_scores(name: str) -> None:
    torch.manual_seed(0)
    run = served(MODELS[name]())
    with kept() as said:
        items, users = run.item_vectors(), run.user_vectors(HISTORIES)
    assert (items.ids, users.ids) == (IDS, [0, 1, 3])
    assert said == []
    found = run.recommend([HISTORIES[place] for place in users.ids], len(IDS), exclude_seen=False)
    for row, one in zip(users.vectors @ items.vectors.T, found, strict=True):
        scores = dict(zip(IDS, row.tolist(), strict=True))
        assert [scores[raw] for raw in one.items] == pytest.approx(one.scores, rel=1e-4, abs=1e-5)


def test_a_model_that_adds_to_its_products_says_so_and_they_find_its_candidates() -> None:
    """`Spectral` gives items that a user met their own share; others keep the order of the products."""
    torch.manual_seed(0)
    model = MODELS["spectral-discriminant"]()
    model.repeats = Repeats(0.02)
    model.repeats.shares.copy_(torch.linspace(0.2, 0.1, len(model.repeats.shares)))
    run = served(model)
    with kept() as said:
        users = run.user_vectors([["film 3", "film 7"]])
        run.similar(["film 3"])
    assert [line.startswith("Spectral adds to its scores what no product of vectors gives") for line in said] == [True]
    first = np.argsort(-(users.vectors @ run.item_vectors().vectors.T)[0])
    ranked = [IDS[place] for place in first if IDS[place] not in ("film 3", "film 7")][:5]
    assert run.recommend([["film 3", "film 7"]], k=5)[0].items == ranked
    assert run.recommend([["film 3", "film 7"]], k=5, items=[ranked])[0].items == ranked


def test_vectors_of_users_have_their_names() -> None:
    run = served(Transformer(ITEMS, dim=4, max_length=3))
    plain = run.user_vectors(HISTORIES).vectors
    named = run.user_vectors(dict(zip("abcde", HISTORIES, strict=True)))
    assert named.ids == ["a", "b", "d"]
    frame = pl.DataFrame(
        {"user_id": ["z", "x", "x"], "item_id": ["film 3", "film 9", "film 9"], "timestamp": [1, 2, 3]}
    )
    assert run.user_vectors(frame).ids == ["x", "z"]
    for found, wanted in ((named.vectors, plain), (run.user_vectors(frame).vectors[1], plain[0])):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert run.user_vectors([[]]).vectors.shape == (0, 4)


@pytest.mark.parametrize("popular", [False, True])
def test_similar_items_have_the_largest_cosine(popular: bool) -> None:
    torch.manual_seed(0)
    model = DPFormer(ITEMS, dim=6, max_length=3, popular=popular)
    run, table = served(model), model.item_table.detach().numpy()[1:, : 5 if popular else 6]
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    for raw, found in zip(["film 2", "film 8"], run.similar(["film 2", "film 8"], k=4), strict=True):
        cosines = {other: float(unit[IDS.index(raw)] @ unit[place]) for place, other in enumerate(IDS) if other != raw}
        assert found.items == sorted(cosines, key=lambda other: -cosines[other])[:4]
        assert found.scores == pytest.approx([cosines[other] for other in found.items], abs=1e-6)


def test_an_item_without_a_vector_is_like_none() -> None:
    model = Spectral(ITEMS, top=5, rank=3)
    model.described.place[torch.tensor([2, 4, 6, 8, 10])] = torch.arange(5)
    model.described.vectors[:5] = torch.eye(5, 3) + 0.1
    run = served(model)
    (found,) = run.similar(["film 4"])
    assert sorted(found.items) == ["film 10", "film 2", "film 6", "film 8"]
    with pytest.raises(UserError, match="^items: the model has no vector of id number 2$"):
        run.similar(["film 4", "film 5"])


def test_a_mistake_is_one_line() -> None:
    run = served(Transformer(ITEMS, dim=4, max_length=3))
    walk = Served(Walk(), Catalogue(["a", "b", "c"]), {})
    for ask, says in (
        (lambda: run.similar(["flim 3"]), "items: id number 1 is unknown to the run; did you mean film 3"),
        (lambda: run.similar("film 3"), "items must be a list of item ids"),
        (lambda: run.similar(["film 3"], k=0), "k is 0"),
        (lambda: walk.similar(["a"]), "Walk has no vectors of items, only scores: use recommend"),
        (lambda: walk.item_vectors(), "Walk has no vectors of items"),
        (lambda: walk.user_vectors([["a"]]), "Walk has no vectors of items"),
    ):
        with pytest.raises(UserError, match=says):
            ask()


def test_the_index_of_the_documents_finds_what_recommend_ranks_first() -> None:
    pytest.importorskip("faiss")
    text = (ROOT / "docs" / "serving.md").read_text()
    first = text.index("    import faiss")
    block = textwrap.dedent(text[first : text.index("\n\n", text.index("index.search", first))])
    ids, draw = [str(n) for n in range(2_000)], np.random.default_rng(0)
    run = Served(Transformer(2_001, dim=8, max_length=4), Catalogue(ids), {})
    histories = [draw.choice(ids, 4).tolist() for _ in range(20)]
    names: dict[str, Any] = {"items": run.item_vectors(), "users": run.user_vectors(histories)}
    exec(block, names)
    exact = [one.items for one in run.recommend(histories, exclude_seen=False)]
    found = [[ids[place] for place in row] for row in names["near"]]
    assert np.mean([len({*one} & {*two}) for one, two in zip(found, exact, strict=True)]) > 5
    names["index"].nprobe = 1_000
    found = [[ids[place] for place in row] for row in names["index"].search(names["users"].vectors, 10)[1]]
    assert [{*row} for row in found] == [{*row} for row in exact]
