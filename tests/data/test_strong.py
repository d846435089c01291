"""Strong generalisation: the split and the metrics against numpy, and held-out users who reach nothing of training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec import DPFormer
from dprec.accounting.release import ExactSums
from dprec.data import Sequences
from dprec.data.logs.histories import visits
from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.metrics.ranking import STRONG_GAINS, both_ranks
from dprec.report import main as report
from dprec.run.tasks.judged import Popular

USERS = [f"u{n:03}" for n in range(400)]
ITEMS = [f"film{n:02}" for n in range(60)]
SHARE = 10_000 / 136_677  # held out for the test in papers on MovieLens-20M
Log = Mapping[str, list[str]]


def place(text: str) -> float:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64


def log(seed: int = 0, users: Iterable[str] = USERS) -> dict[str, list[str]]:
    """Three to 24 events of each user in time order, some of them with an item that the user saw before."""
    draw = np.random.default_rng(seed)
    return {user: [ITEMS[n] for n in draw.integers(0, len(ITEMS), draw.integers(3, 25))] for user in users}


def data(events: Log, **settings: Any) -> Sequences:
    rows = [(user, item, time) for user, items in events.items() for time, item in enumerate(items)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    given = {"protocol": "strong", "batch_size": 50, "max_length": 10}
    return Sequences.of(frame, **{**given, **settings})


def part(user: str) -> str:
    where = place(user)
    return "test" if where < SHARE else "validation" if where < 2 * SHARE else "training"


def raw(made: Sequences, items: Sequence[int]) -> list[str]:
    return [made.catalogue.raw(int(item)) for item in items if item]


def test_users_and_items_are_held_out_as_by_plain_loops() -> None:
    events = log()
    made = data(events)
    training = {user: items for user, items in events.items() if part(user) == "training"}
    assert made.catalogue.ids == ITEMS
    assert [raw(made, made.training.of(n)) for n in range(made.users)] == [i for i in training.values() if len(i) >= 5]
    counts = {item: sum(items.count(item) for items in training.values() if len(items) >= 5) for item in ITEMS}
    assert made.popularity[1:].tolist() == list(counts.values())
    for split in ("validation", "test"):
        wanted = []
        for user, items in events.items():
            own = sorted(set(items), key=lambda item: place(f"{user}\n{item}"))
            found = set(own[: len(own) // 5])
            if part(user) == split and len(items) >= 5 and found:
                wanted.append(([item for item in items if item not in found], found))
        assert len(wanted) > 15
        rows = [
            (raw(made, seen), set(raw(made, target)), raw(made, history))
            for batch in made.ranking_dataloader(split)  # type: ignore[arg-type]
            for seen, target, history in zip(
                batch.seen.tolist(), batch.target.view(len(batch), -1).tolist(), batch.history.tolist(), strict=True
            )
        ]
        assert sorted((seen, sorted(found)) for seen, found, _ in rows) == sorted((s, sorted(f)) for s, f in wanted)
        assert all(history == seen[-10:] for seen, _, history in rows)  # the others, in time order


def trained_on(made: Sequences, **options: Any) -> dict[str, Any]:
    """All that training may take from the data."""
    counted = sorted(
        (user, made.found.item_ids[item])
        for users, items in visits(made.found)
        for user, item in zip(users.tolist(), items.tolist(), strict=True)
    )
    model = DPFormer(**made.sizes, dim=4, blocks=1, heads=1, **options)
    model.prepare(made, ExactSums())
    return {
        "users": made.users,
        "items": made.catalogue_ids,
        "histories": [made.training.of(user).tolist() for user in range(made.users)],
        "popularity": made.popularity.tolist(),
        "shares": model.item_error.tolist(),
        "batches": len(made.batches),
        "counted": counted,  # by a private catalogue
    }


def test_what_held_out_users_did_reaches_nothing_of_training() -> None:
    """They all watch one new film and no other any more; a catalogue of their films would hold it."""
    events = log()
    away = [user for user in events if part(user) != "training"]
    others = {**events, **{user: ["new film"] * 20 + ITEMS[:8] for user in away}}
    one, two = trained_on(data(events)), trained_on(data(others))
    assert one == two
    assert one == trained_on(data({user: items for user, items in log(seed=0).items() if user not in away[:9]}))
    assert data(events).content != data(others).content
    moved = {**events, **{user: ITEMS[:9] for user in USERS if part(user) == "training"}}
    assert trained_on(data(moved)) != one


def test_an_item_of_held_out_users_alone_is_not_in_the_catalogue() -> None:
    events = log()
    for user, items in events.items():
        if part(user) != "training":
            items.append("rare")
    made = data(events)
    assert made.catalogue.index("rare") is None


def recall_of_mult_vae(scores: np.ndarray, found: np.ndarray, k: int) -> np.ndarray:
    """As published: the first k in any order, and the user's items as rows of ones."""
    first = np.zeros_like(found, dtype=bool)
    first[np.arange(len(scores))[:, None], np.argpartition(-scores, k, axis=1)[:, :k]] = True
    ours: np.ndarray = np.logical_and(found > 0, first).sum(1) / np.minimum(k, (found > 0).sum(1))
    return ours


def ndcg_of_mult_vae(scores: np.ndarray, found: np.ndarray, k: int) -> np.ndarray:
    order = np.argsort(-scores, axis=1)[:, :k]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    gains = (np.take_along_axis(found, order, axis=1) * discounts).sum(1)
    ours: np.ndarray = gains / np.array([discounts[: min(int(n), k)].sum() for n in (found > 0).sum(1)])
    return ours


@pytest.mark.parametrize("k", [1, 3, 20, 50])
def test_metrics_are_those_of_mult_vae(k: int) -> None:
    """Also where a user has more held-out items than k; items seen are not ranked."""
    made = data(log())
    for batch in [*made.test_dataloader(), *made.val_dataloader()]:
        scores = np.random.default_rng(k).standard_normal((len(batch), made.items))
        target = batch.target.view(len(batch), -1).numpy()
        found = np.zeros_like(scores)
        np.put_along_axis(found, target, 1.0, axis=1)
        masked = scores.copy()
        np.put_along_axis(masked, batch.seen.numpy(), -np.inf, axis=1)
        found, masked = found[:, 1:], masked[:, 1:]  # without the padding
        ranks = both_ranks(torch.from_numpy(scores), batch.target, batch.seen)[1]
        np.testing.assert_allclose(STRONG_GAINS["recall"](ranks, k), recall_of_mult_vae(masked, found, k))
        np.testing.assert_allclose(STRONG_GAINS["ndcg"](ranks, k), ndcg_of_mult_vae(masked, found, k))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"validation": False}, "strong holds out users for validation, too: set data.validation to true"),
        ({"test_events": 0.2}, "data.protocol strong and data.test_events are two ways to hold out: give one"),
    ],
)
def test_combinations_without_sense_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        data(log(), **settings)


def test_a_log_of_too_few_users_is_refused() -> None:
    with pytest.raises(UserError, match="holds out 0 users for the test and .* give a log of more users"):
        data(log(users=[user for user in USERS if part(user) == "training"])).setup()


def test_a_run_says_what_was_judged_beside_popularity(tmp_path: Path, capsys: Any) -> None:
    lines = [f"{user},{item},{time}" for user, items in log().items() for time, item in enumerate(items)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *lines]))
    (tmp_path / "films.yaml").write_text(
        "data: {batch_size: 50, max_length: 10}\nmodel: {dim: 4, blocks: 1}\nprivacy: {epsilon: 4, delta: 0.01}\n"
        "trainer: {max_steps: 2, accelerator: cpu, enable_progress_bar: false}\n"
    )
    words = ["--data.path", str(tmp_path / "log.csv"), "--data.protocol", "strong", "--seed", "1"]
    run = tmp_path / "run"
    assert fit([str(tmp_path / "films.yaml"), *words, "--out", str(run)]) == 0
    found = json.loads((run / "metrics.json").read_text())
    made = data(log())
    popular, hits, gains = Popular(made.popularity), [], []
    for batch in made.test_dataloader():
        ranks = both_ranks(popular.scores(batch), batch.target, batch.seen)[1]
        hits += STRONG_GAINS["recall"](ranks, 20).tolist()
        gains += STRONG_GAINS["ndcg"](ranks, 100).tolist()
    assert found["popularity_recall@20"] == pytest.approx(np.mean(hits))  # the same users, whatever the seed
    assert found["popularity_ndcg@100"] == pytest.approx(np.mean(gains))
    assert found["validation"]["recall@20"] > 0
    said = "a random fifth of the items of 0.0732 of the users"
    assert said in found["protocol"]
    assert "divided by k if more than k are held out" in found["protocol"]
    assert "whom this run does not protect" in found["guarantee"]
    assert report([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert all(words in page for words in (said, "RECALL@20", "NDCG@100", "whom this run does not protect"))
    capsys.readouterr()
    assert evaluate([str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recall@20"] == found["recall@20"]
