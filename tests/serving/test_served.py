"""`dprec.load(run).recommend`: lists, names and data frames; popularity without a history; fast enough for one."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from dprec.data import Catalogue
from dprec.data.draws.batch import RankingBatch
from dprec.errors import UserError
from dprec.models import Recommender, Spectral, Transformer
from dprec.serving.served import Served
from dprec.serving.top_k import Recommended

ITEMS = ["alien", "brazil", "casablanca", "dune", "7"]


@pytest.fixture
def served() -> Served:
    torch.manual_seed(0)
    return Served(Transformer(len(ITEMS) + 1, dim=8, max_length=4), Catalogue(ITEMS), {})


def by_hand(served: Served, history: list[str], exclude_seen: bool) -> list[str]:
    ids = [served.catalogue.index(raw) for raw in history][-4:]
    with torch.inference_mode():
        scores = served.model.encode(torch.tensor([ids]))[0, -1] @ served.model.item_table.T
    order = sorted(ITEMS, key=lambda raw: -float(scores[served.catalogue.index(raw) or 0]))
    return [raw for raw in order if not (exclude_seen and raw in history)]


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_each_history_gets_what_it_gets_alone(served: Served, exclude_seen: bool) -> None:
    old = ["casablanca", *["7"] * 6, "brazil"]  # of which the model reads four
    histories = [["alien"], ["dune", "brazil", "alien"], old, ["casablanca", "dune"]]
    together = served.recommend(histories, k=5, exclude_seen=exclude_seen)
    for history, found in zip(histories, together, strict=True):
        assert found.items == by_hand(served, history, exclude_seen)
        assert found.source == "history"
        alone = served.recommend([history], k=5, exclude_seen=exclude_seen)[0]
        assert alone.items == found.items


def test_ids_are_read_as_in_a_log_and_unknown_ones_are_told(served: Served) -> None:
    plain, odd = served.recommend([["7", "dune"], [7.0, " dune ", "what"]])
    assert odd.items == plain.items
    assert (plain.unknown, odd.unknown) == ([], ["what"])


def test_only_the_items_that_may_be_chosen_are_and_none_that_are_excluded(served: Served) -> None:
    histories = [["alien"], ["dune", "brazil"], []]
    few = served.recommend(histories, 5, items=["7", "alien", "casablanca"], exclude=[7])
    for history, found in zip(histories, few, strict=True):
        assert set(found.items) == {"alien", "casablanca"} - set(history)
    each = served.recommend(histories, 5, False, items=[["7", "alien"], None, []], exclude=[[], ["dune"], ["7"]])
    assert each[0].items == [raw for raw in by_hand(served, ["alien"], False) if raw in ("7", "alien")]
    assert each[1].items == [raw for raw in by_hand(served, ["dune", "brazil"], False) if raw != "dune"]
    assert each[2].items == []
    named = dict(zip("abc", histories, strict=True))
    found = served.recommend(named, 5, False, items={"a": ["7", "alien"], "c": []}, exclude={"b": ["dune"]})
    assert list(found.values()) == each
    log = pl.DataFrame({"user_id": ["b", "a", "b"], "item_id": ["dune", "alien", "brazil"]})
    frame = served.recommend(log, 5, False, items={"a": ["7", "alien"]}, exclude={"b": ["dune"]})
    assert frame["item"].to_list() == each[0].items + each[1].items


def test_of_many_users_each_has_what_plain_scores_of_its_candidates_say() -> None:
    torch.manual_seed(1)
    ids, draw = [f"i{n}" for n in range(300)], np.random.default_rng(0)
    run = Served(Transformer(301, dim=8, max_length=6).eval(), Catalogue(ids), {})
    histories, items, without = ([draw.choice(ids, n).tolist() for _ in range(40)] for n in (5, 60, 30))
    batch = torch.tensor([[ids.index(raw) + 1 for raw in history] for history in histories])
    with torch.inference_mode():
        scores = run.model.scores(RankingBatch(batch, batch[:, 0], batch))
    found = run.recommend(histories, 7, items=items, exclude=without)
    for row, history, among, hidden, one in zip(scores, histories, items, without, found, strict=True):
        left = set(among) - set(hidden) - set(history)
        assert one.items == sorted(left, key=lambda raw: -float(row[ids.index(raw) + 1]))[:7]
        assert one.scores == pytest.approx([float(row[ids.index(raw) + 1]) for raw in one.items], rel=1e-5)


def test_names_are_kept(served: Served) -> None:
    found = served.recommend({"ann": ["alien"], ("a", 1): ["dune"]}, k=2)
    assert list(found) == ["ann", ("a", 1)]
    assert found["ann"].items == served.recommend([["alien"]], k=2)[0].items


def test_a_data_frame_gives_a_data_frame_with_its_users(served: Served) -> None:
    """Rows in any order: the times decide; pandas is the same, by what dprec.data reads of it."""
    log = pl.DataFrame({"user_id": ["b", "a", "b"], "item_id": ["dune", "alien", "brazil"], "timestamp": [9, 1, 2]})
    found = served.recommend(log, k=2)
    assert found.columns == ["user", "place", "item", "score", "source"]
    assert found["user"].to_list() == ["a", "a", "b", "b"]
    wanted = served.recommend({"a": ["alien"], "b": ["brazil", "dune"]}, k=2)
    assert found["item"].to_list() == wanted["a"].items + wanted["b"].items
    pandas = pytest.importorskip("pandas")
    again = served.recommend(pandas.DataFrame(log.to_dict(as_series=False)), k=2)
    assert isinstance(again, pandas.DataFrame)
    assert again["item"].tolist() == found["item"].to_list()


def test_without_a_known_item_the_answer_is_popularity(served: Served) -> None:
    known, empty, strange = served.recommend([["alien"], [], ["what", "ever"]], k=5)
    assert known.source == "history"
    assert empty == Recommended(empty.items, empty.scores, "popularity", [])
    assert strange == Recommended(empty.items, empty.scores, "popularity", ["what", "ever"])
    assert sorted(empty.items) == sorted(ITEMS)
    assert sum(empty.scores) == pytest.approx(1.0)


class Walk(Recommender):
    """Users go from item i to item j with the probability `chances[i, j]`."""

    chances = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1]])

    def __init__(self) -> None:
        super().__init__(items=4)

    def losses(self, batch: object) -> Tensor:
        raise NotImplementedError

    def scores(self, batch: RankingBatch) -> Tensor:
        last = batch.history[torch.arange(len(batch)), (batch.history != 0).sum(1).clamp(min=1) - 1]
        return torch.cat([torch.full((len(last), 1), 99.0), self.chances[last - 1].log()], dim=1)


def test_popularity_is_where_the_model_leads_in_the_long_run() -> None:
    share = Walk().without_history()
    values, vectors = np.linalg.eig(Walk.chances.numpy().T)
    stationary = np.real(vectors[:, values.argmax()])
    np.testing.assert_allclose(share[1:], stationary / stationary.sum(), atol=1e-4)
    assert share[0] == 0


def test_a_model_may_hold_the_scores_that_it_gives() -> None:
    class Held(Walk):
        one = torch.tensor([0.0, 3.0, 1.0, 2.0])

        def scores(self, batch: RankingBatch) -> Tensor:
            return self.one.expand(len(batch), -1)

    for found in Served(Held(), Catalogue(["a", "b", "c"]), {}).recommend([["a"], ["c"]], k=3):
        assert found.items in (["c", "b"], ["a", "b"])
    assert Held.one.tolist() == [0, 3, 1, 2]


def test_a_model_that_holds_a_release_of_popularity_answers_with_it() -> None:
    model = Spectral(items=5, top=3, rank=2)
    model.described.popularity.copy_(torch.tensor([0.0, 3, 9, 1, 4]))
    (best,) = Served(model, Catalogue(["a", "b", "c", "d"]), {}).recommend([[]], k=4)
    assert best.items == ["b", "d", "a", "c"]
    assert best.source == "popularity"


@pytest.mark.parametrize(
    ("histories", "options", "says"),
    [
        ([["alien"]], {"k": 0}, "k is 0"),
        ([["alien"]], {"k": True}, "k is True"),
        (["alien"], {}, "history 0 is no list: give item ids"),
        ([["alien"]], {"items": ["7", "alein"]}, "items: id number 2 is unknown to the run; did you mean alien.$"),
        (
            [["alien"]],
            {"exclude": [["x", "y"]]},
            "exclude of 0: 2 of 2 ids are unknown to the run, the first is number 1$",
        ),
        ([["alien"]], {"items": "alien"}, "items must be a list of item ids: give one"),
        ([["alien"]], {"items": [["7"], ["7"]]}, "items has 2 lists for 1 histories: give one for each"),
        ({"ann": ["7"]}, {"items": {"an": ["7"]}}, "items names 'an', whose history is not given; did you mean ann.$"),
        ("alien", {}, "histories are a str: give a list of histories, .*; a history is item ids, oldest first"),
    ],
)
def test_a_mistake_is_one_line(served: Served, histories: object, options: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        served.recommend(histories, **options)


def test_one_history_among_ten_thousand_items_takes_below_five_milliseconds() -> None:
    """Of this process's own time, at the best of many: other processes do not count."""
    items = [str(number) for number in range(10_000)]
    served = Served(Transformer(10_001, dim=64, max_length=200), Catalogue(items), {})
    history = [items[place] for place in np.random.default_rng(0).integers(0, 10_000, 50)]
    times = []
    for _ in range(50):
        start = time.process_time()
        served.recommend([history])
        times.append(time.process_time() - start)
    assert min(times) < 0.005
