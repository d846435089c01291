"""Ten nights of a shop whose items come and go: a model that is trained further, one made anew, one never updated.

Each night has a log of the last five days, and what is judged is the next day: the first item of each user who comes
back. Each day a tenth of the items is new. The model that goes on and the one made anew have the same noise in the
same steps, so at the end of a night they have the same joint ε. The third spent the ε of all ten nights on the first.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import study
from dprec import load
from study import Row

NIGHTS, SEEDS, WINDOW = 10, 3, 5  # days of a log
USERS, KINDS, LIVE = 4000, 20, 10  # a kind has so many items at a time, and each day one more and one less
EPSILON, TOGETHER, DELTA = 2.2, 8.0, 1e-4  # of each night, and of all
COMES, LIKES, CHANGES = 0.4, 0.85, 0.1  # chances: of a day, that an item is of a kind that is liked, of a new liking
WORDS = (
    f"quickstart --privacy.epsilon {EPSILON} --privacy.delta {DELTA} --privacy.verify 0 --trainer.max_steps 30 "
    "--trainer.check_val_every_n_epoch 1000 --model.dim 16 --model.blocks 1 --model.feedforward 32 --data.dataset file "
    "--data.validation false --data.min_events 3 --data.batch_size 0.25 --data.max_length 20"
).split()
ANEW, FURTHER, ONCE = "made anew", "trained further", "never updated"
COLUMNS = {"night": "night", "model": "model", "ndcg": "NDCG@10", "epsilon": "joint ε"}
Day = dict[str, list[str]]  # the items of each user


def days(draw: random.Random, users: int) -> Iterator[Day]:
    """Yield what users take, day after day, never an item twice."""
    worth, number = defaultdict[int, dict[str, float]](dict), 0
    likes, seen = [draw.sample(range(KINDS), 2) for _ in range(users)], [set[str]() for _ in range(users)]
    while True:
        for kind in range(KINDS):
            for _ in range(1 if worth[kind] else LIVE):
                worth[kind][f"i{number}"] = draw.random() ** -0.7
                number += 1
            worth[kind] = dict([*worth[kind].items()][-LIVE:])
        day: Day = {}
        for user in range(users):
            if draw.random() < CHANGES:
                likes[user][draw.randrange(2)] = draw.randrange(KINDS)
            for _ in range(draw.randrange(2, 6) if draw.random() < COMES else 0):
                kind = draw.choice(likes[user]) if draw.random() < LIKES else draw.randrange(KINDS)
                new = {item: weight for item, weight in worth[kind].items() if item not in seen[user]}
                for item in draw.choices([*new], [*new.values()]) if new else ():
                    seen[user].add(item)
                    day.setdefault(f"u{user}", []).append(item)
        yield day


def judged(run: Path, histories: Day, tomorrow: Day) -> float:
    """Return NDCG@10 of the first item that each user takes tomorrow; a model may not know it."""
    asked = {user: own for user, own in histories.items() if user in tomorrow}
    answers = load(str(run)).recommend(asked, k=10)
    shown = [(answers[user].items, tomorrow[user][0]) for user in asked]
    return sum(1 / math.log2(items.index(item) + 2) for items, item in shown if item in items) / len(asked)


def shop(seed: int, folder: Path, nights: int, users: int) -> Iterator[Row]:
    """Yield the figures of each model after each night."""
    coming = days(random.Random(seed), users)
    past = [next(coming) for _ in range(WINDOW)]
    for night in range(1, nights + 1):
        tomorrow, histories, log = next(coming), defaultdict[str, list[str]](list), folder / f"{night}.csv"
        for user, items in (own for day in past for own in day.items()):
            histories[user] += items
        lines = [f"{user},{item},{time}\n" for user, own in histories.items() for time, item in enumerate(own)]
        log.write_text("user_id,item_id,timestamp\n" + "".join(lines))
        words = [*WORDS, "--seed", str(seed), "--data.path", str(log)]
        runs = {FURTHER: folder / f"further {night}", ANEW: folder / f"anew {night}", ONCE: folder / "once"}
        before = ["--continue-from", str(folder / f"further {night - 1}")] if night > 1 else []
        epsilon = study.fit(runs[FURTHER], *words, *before)["epsilon"]
        study.fit(runs[ANEW], *words)
        if not runs[ONCE].exists():
            study.fit(runs[ONCE], *words, "--privacy.epsilon", str(TOGETHER))
        for model, run in runs.items():
            spent = TOGETHER if model == ONCE else epsilon
            yield {"night": night, "model": model, "ndcg": judged(run, histories, tomorrow), "epsilon": spent}
        past = [*past[1:], tomorrow]


def measure(asked: Namespace) -> list[Row]:
    seeds, nights, users = (2, 2, 300) if asked.quick else (SEEDS, NIGHTS, USERS)
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            found.append([*shop(seed, Path(folder), nights, users)])
    return [rows[0] | {"ndcg": statistics.mean(row["ndcg"] for row in rows)} for rows in zip(*found, strict=True)]


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
