"""Eight logs to choose recipes and constants on: four real ones, and four invented ones whose structure is known.

    python docs/studies/eight_logs.py invent logs
    python docs/studies/eight_logs.py train logs runs.jsonl --recipes sequences movielens_dpformer_popular --epsilons 5
    python docs/studies/eight_logs.py table runs.jsonl

`invent` writes the invented logs into a folder. Put the real ones beside them, as `user item` lines in time order:
ml-1m.txt.gz, amazon-games.txt.gz, sports.txt.gz, lastfm.txt.gz. `train` trains each recipe on each log that is there,
and writes one line for each run; what is in the file already is not trained again, so it may be stopped at any time.
Only figures of validation items are kept, as NDCG@10 over popularity's. Choose by their mean over all logs: what is
chosen on one log's test is chosen for that test.

Changes of `sequences` that were tried and left out. Each figure is the change of NDCG@10 at ε = 5 and at ε = 10, as a
geometric mean over logs, with the same noise. On Games and sports about 5,500 users were ranked.

| change | logs, runs | ε = 5 | ε = 10 |
| --- | --- | --- | --- |
| Sampling noise in the histories before items counts, too | all, one run or two | -1.1 % | -0.2 % |
| The same without Games and sports | six, one run or two | +0.7 % | +1.5 % |
| Axes of pairs weighed by how certain they are | the last four and lastfm, two runs | -3.1 % | -4.9 % |
| Counted steps weighed by their chance of being noise, not used from 3 σ on | succession, two runs | -0.6 % | -1.2 % |
| `rank` 32 | ml-1m, one run |  | -9.5 % |
| `rank` 128 | ml-1m, one run |  | -0.5 % |
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Event = tuple[float, str, str]  # time, user, item
Draw = random.Random
REAL = ("ml-1m", "amazon-games", "sports", "lastfm")


def succession(draw: Draw) -> Iterator[Event]:
    """4,000 users, 800 items. Four events of ten are the one item that follows the item before."""
    following, popularity = [*range(800)], _popularity(800)
    draw.shuffle(following)
    for user in range(4000):
        item = _chosen(draw, popularity)
        for event in range(_length(draw, 20)):
            yield draw.random() + event, f"u{user}", f"i{item}"
            item = following[item] if draw.random() < 0.4 else _chosen(draw, popularity)


def sessions(draw: Draw) -> Iterator[Event]:
    """3,000 users, 2,000 items. Sessions of one topic of 40; a third of all events goes back to an item met before."""
    topics = [[*range(topic, 2000, 40)] for topic in range(40)]
    within, across = _popularity(50), _popularity(40)
    for user in range(3000):
        met: list[int] = []
        for session in range(_length(draw, 5, least=2)):
            topic = topics[_chosen(draw, across)]
            for event in range(_length(draw, 5, least=2)):
                again = met and draw.random() < 0.35
                item = draw.choice(met) if again else topic[_chosen(draw, within)]
                met.append(item)
                yield session + event / 100 + draw.random() / 200, f"u{user}", f"i{item}"


def drift(draw: Draw) -> Iterator[Event]:
    """4,000 users, 1,500 items. An item appears at some time and is forgotten; users are there for a part of it."""
    kinds = _popularity(15)
    for user in range(4000):
        start, kind = 0.8 * draw.random(), _chosen(draw, kinds)
        for event in range(_length(draw, 15)):
            now = start + event / 100
            born = min(99, max(0, int(100 * (now - draw.expovariate(12)))))  # a hundredth of the log's time
            item = 15 * born + (kind if draw.random() < 0.6 else _chosen(draw, kinds))
            yield now, f"u{user}", f"i{item}"


def bots(draw: Draw) -> Iterator[Event]:
    """600 users, 5,000 items in 50 kinds, and three bots, each of which visits every item in turn."""
    kinds, within = _popularity(50), _popularity(100)
    for user in range(600):
        liked = [_chosen(draw, kinds) for _ in range(3)]
        for event in range(_length(draw, 60)):
            yield event + draw.random(), f"u{user}", f"i{50 * _chosen(draw, within) + draw.choice(liked)}"
    for bot in range(3):
        for event in range(5000):
            yield event / 100, f"bot{bot}", f"i{(event + 1000 * bot) % 5000}"


INVENTED: dict[str, Callable[[Draw], Iterator[Event]]] = {
    "succession": succession,
    "sessions": sessions,
    "drift": drift,
    "bots": bots,
}


def invent(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, events in INVENTED.items():
        lines = [f"{user} {item}\n" for _, user, item in sorted(events(random.Random(name)))]
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(lines):,} events")


def train(folder: Path, file: Path, recipes: Sequence[str], epsilons: Sequence[str], seeds: Sequence[str]) -> None:
    logs = {
        path.name.partition(".")[0]: path for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    }
    if lost := {*REAL, *INVENTED} - {*logs}:
        print(f"{folder} lacks {', '.join(sorted(lost))}: the table has no columns for them", file=sys.stderr)
    done = {(row["log"], row["recipe"], row["epsilon"], row["seed"]) for row in _rows(file)} if file.exists() else set()
    for epsilon, log, recipe, seed in itertools.product(epsilons, logs, recipes, seeds):
        if (log, recipe, epsilon, seed) in done:
            continue
        started = time.monotonic()
        row = {"log": log, "recipe": recipe, "epsilon": epsilon, "seed": seed, **run(logs[log], recipe, epsilon, seed)}
        with file.open("a", encoding="utf-8") as runs:
            runs.write(json.dumps({**row, "seconds": round(time.monotonic() - started)}) + "\n")


def run(log: Path, recipe: str, epsilon: str, seed: str) -> dict[str, object]:
    """Train a recipe, and return its figures on validation items beside those of popularity."""
    known = recipe if recipe.endswith(".yaml") else f"recipes/{recipe}.yaml"
    asked = ["--data.path", str(log), "--data.validation", "true", "--privacy.epsilon", epsilon, "--seed", seed]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "dprec.fit", known, *asked, "--out", f"{out}/run"]
        ended = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1", **os.environ})
        if ended.returncode:
            return {"error": ended.stderr.strip().splitlines()[-1:]}
        metrics = json.loads(Path(out, "run", "metrics.json").read_text(encoding="utf-8"))
    kept = ("ndcg@10", "ndcg@10/all", "popularity_ndcg@10", "popularity_ndcg@10/all")
    return {"users": metrics["users"], "items": metrics["items"], **{key: metrics["validation"][key] for key in kept}}


def table(file: Path) -> None:
    print("\n".join(lines(file)))


def lines(file: Path, recipes: Sequence[str] = ()) -> list[str]:
    """NDCG@10 on validation items in %, of these recipes or all, seen items masked; last the mean gain."""
    rows = [row for row in _rows(file) if "error" not in row]
    logs = [log for log in (*REAL, *INVENTED) if any(row["log"] == log for row in rows)]
    made = [f"| ε | recipe | {' | '.join(logs)} | over popularity |", "|---|---|" + "---|" * (len(logs) + 1)]
    shown = [row for row in rows if not recipes or row["recipe"] in recipes]
    for epsilon, recipe in dict.fromkeys((row["epsilon"], row["recipe"]) for row in shown):
        cells, gains = [], []
        for log in logs:
            found = [row for row in rows if (row["log"], row["recipe"], row["epsilon"]) == (log, recipe, epsilon)]
            if not found:
                cells.append("")
                continue
            reached = statistics.mean(row["ndcg@10"] for row in found)
            cells.append(f"{100 * reached:.2f}")
            gains.append(reached / found[0]["popularity_ndcg@10"])
        whole = f"{statistics.geometric_mean(gains):.2f}" if len(gains) == len(logs) else ""
        made.append(f"| {epsilon} | `{recipe}` | {' | '.join([*cells, whole])} |")
    popularity = {row["log"]: f"{100 * row['popularity_ndcg@10']:.2f}" for row in rows}
    return [*made, f"| | popularity | {' | '.join(popularity[log] for log in logs)} | 1 |"]


def _rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _popularity(items: int) -> list[float]:
    """Cumulative shares of items, of which the n-th is chosen in proportion to 1 / (n + 5)."""
    return [*itertools.accumulate(1 / (item + 5) for item in range(items))]


def _chosen(draw: Draw, popularity: list[float]) -> int:
    return draw.choices(range(len(popularity)), cum_weights=popularity)[0]


def _length(draw: Draw, mean: int, least: int = 5) -> int:
    return least + int(draw.expovariate(1 / max(1, mean - least)))


PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("what", choices=("invent", "train", "table"))
PARSER.add_argument("places", type=Path, nargs="+", help="the folder of logs, the file of runs, or both")
PARSER.add_argument("--recipes", nargs="+", default=["sequences"])
PARSER.add_argument("--epsilons", nargs="+", default=["5"])
PARSER.add_argument("--seeds", nargs="+", default=["0"])

if __name__ == "__main__":
    asked = PARSER.parse_args()
    if asked.what == "train":
        train(*asked.places, asked.recipes, asked.epsilons, asked.seeds)
    else:
        {"invent": invent, "table": table}[asked.what](*asked.places)
