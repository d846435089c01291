"""EANA's studies: ε of its theorem, precision under its noises, and its task with three features of context.

`theorem` is the paper's Figure 2: ε of Theorem 3.1, printed and exact, beside DP-SGD with EANA's noise. The divergence
that the paper prints is right for neither direction. With one more user, who adds x, it is

    D_α(with ‖ without) = αx² / (2(m + 1 - α)σ²) - ½ ln(1 + 1/m) + ln(m / (m + 1 - α)) / (2(α - 1))

and the other direction is smaller. At m = 20, α = 5, x = σ = 1 this is 0.160; the paper prints 0.215, which is larger,
so its theorem holds.

`precision` is its Figure 4: precision@k of SGD, DP-SGD and EANA with small noises. `context` is the same on a log with
three features: the paper's own is not public. In this one a person has a few interests, an activity is an entity of one
of them, its unigram is a word of that interest, and its bigram is that word with the word before.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

import study
from dprec.sparsity.revealed import ORDERS, added, epsilons
from study import Row

RECIPE = "recipes/movielens20m_dual_encoder_paper_sgd.yaml"
TINY = study.words({"data.batch_size": 20, "trainer.max_steps": 2})
INVENTED = study.words({"data.dataset": "synthetic", "data.synthetic_users": 120, "data.synthetic_items": 50})
DELTA, WIDTH = 1e-7, 10.0  # as in the paper, with vectors of norm 1
PLACES = (1, 5, 10, 20)
TOPICS, WORDS = 200, 2_000
COLUMNS = {
    "sigma": "σ",
    "count": "users of a coordinate",
    "dp_sgd": "DP-SGD",
    "printed": "EANA, printed",
    "exact": "EANA, exact",
    "ratio": "printed / DP-SGD",
    "system": "system",
    "noise": "noise",
    **{f"precision@{k}": f"precision@{k}" for k in PLACES},
    "steps": "steps",
}


Orders = float | np.ndarray
Bound = Callable[..., np.ndarray]


def printed(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """Equation 1: `width` coordinates with `count` users each, to which one more adds a vector of norm x.

    >>> round(float(printed(5.0, count=20)), 3)
    0.215
    """
    alpha, left = _orders(alpha, count)
    logs = 0.5 * np.log1p(1 / count) + np.log((count + 1) / left) / (2 * (alpha - 1))
    return alpha * x**2 / (2 * left * sigma**2) + width * logs


def removed(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """D_α(without the user ‖ with); finite at every order."""
    alpha = np.asarray(alpha, dtype=float)
    logs = 0.5 * np.log1p(1 / count) + np.log((count + 1) / (count + alpha)) / (2 * (alpha - 1))
    return alpha * x**2 / (2 * (count + alpha) * sigma**2) + width * logs


def dp_sgd(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """The same for noise that does not depend on who is there: N(0, count σ²) on every coordinate."""
    return np.asarray(alpha, dtype=float) * x**2 / (2 * count * sigma**2)


def of_user(
    alpha: float, counts: Sequence[float], values: Sequence[float], sigma: float, bound: Bound = added
) -> float:
    """Equation 9: the bound for one user who adds `values` to coordinates that `counts` others touch.

    A rare coordinate costs more than all popular ones together; one that no other user touches has an infinite cost.
    """
    pairs = zip(counts, values, strict=True)
    return float(sum(bound(alpha, count, value, sigma) if count > 0 else np.inf for count, value in pairs))


def epsilon(bound: Bound, delta: float, count: float, sigma: float, x: float = 1.0, width: float = 1.0) -> float:
    """The ε at this δ of a Rényi bound, over real orders. It depends on the data through `count`."""
    return float(epsilons(bound(ORDERS, count, x, sigma, width), ORDERS, delta))


def _orders(alpha: Orders, count: float) -> tuple[np.ndarray, np.ndarray]:
    """The orders, and the remaining noise at each: an order is ∞ where the divergence is infinite."""
    alpha = np.asarray(alpha, dtype=float)
    left = count + 1 - alpha
    return np.where(left > 0, alpha, np.inf), np.where(left > 0, left, 1.0)


def theorem() -> list[Row]:
    """Return a row for each σ and number of users of every coordinate; None where a bound has no finite order."""
    found = []
    for sigma in (0.1, 0.3, 1.0):
        for count in (10, 100, 1_000, 10_000, 100_000):
            bounds = {"dp_sgd": dp_sgd, "printed": printed, "exact": added}
            values = {name: epsilon(bound, DELTA, count, sigma, width=WIDTH) for name, bound in bounds.items()}
            values["ratio"] = values["printed"] / values["dp_sgd"]
            finite = {name: value if np.isfinite(value) else None for name, value in values.items()}
            found.append({"sigma": sigma, "count": count, **finite})
    return found


def invented(people: int, entities: int, activities: int = 25) -> pl.DataFrame:
    """Return activities of people: person, entity, unigram, bigram, time.

    >>> invented(3, 50).shape
    (75, 5)
    """
    rng = np.random.default_rng(0)
    interests = rng.integers(0, TOPICS, (people, 3))
    topic = interests[np.arange(people)[:, None], rng.integers(0, 3, (people, activities))]  # (P, A)
    rank = np.minimum(rng.zipf(1.5, topic.shape), entities) - 1
    entity = (topic * 7_919 + rank) % entities  # the head of a topic's entities is its own
    word = (topic * 31 + np.minimum(rng.zipf(2.0, topic.shape), 10)) % WORDS
    before = np.concatenate([np.zeros((people, 1), int), word[:, :-1]], axis=1)
    person, time = np.indices(topic.shape)
    bigram = [f"{first} {second}" for first, second in zip(before.ravel(), word.ravel(), strict=True)]
    columns = {"person": person, "entity": entity, "unigram": word, "time": time}
    return pl.DataFrame({name: values.ravel() for name, values in columns.items()} | {"bigram": bigram})


def with_context(log: Path, quick: bool) -> list[str]:
    """Write the log; return the settings that train on it: the films' recipe with a Transformer over the context."""
    log.parent.mkdir(parents=True, exist_ok=True)
    invented(*((120, 60) if quick else (20_000, 10_000))).write_csv(log)
    given = {
        "data.dataset": "file", "data.path": str(log), "data.user_column": "person", "data.item_column": "entity",
        "data.time_column": "time", "data.context": f"{{unigram: {WORDS}, bigram: {4 * WORDS}}}",
        "data.test_users": "0.1", "model.tower": "transformer", "model.context": "null",
        "model.learning_rate": "1",  # at the films' 3 a Transformer diverges
    }  # fmt: skip
    return study.words(given)


def measure(asked: Namespace) -> list[Row]:
    if asked.study == "theorem":
        return theorem()
    runs = asked.runs or Path("runs", f"eana-{asked.study}{'-quick' if asked.quick else ''}")
    tables = ["embedding*", "own_context*"]
    if asked.study == "context":
        shared, tables = with_context(runs / "activities.csv", asked.quick), [*tables, "context_vectors*"]
    else:
        shared = INVENTED if asked.quick else []
    shared = [RECIPE, *shared, *(TINY if asked.quick else ()), "--trainer.enable_progress_bar", "false", *asked.fits]
    placed = json.dumps([{"class_path": "dprec.sparsity.EANA", "init_args": {"tables": tables}}])
    rows = [precision("SGD", None, study.fit(runs / "sgd", *shared))]
    for noise in (0.01, 0.001):
        private = ["--privacy.noise_multiplier", f"{noise:g}", "--privacy.clipping", "flat", "--privacy.max_norm", "1"]
        for system, own in (("DP-SGD", []), ("EANA", ["--privacy.sparsity", placed])):
            folder = runs / f"{system.lower()}-{noise:g}"
            rows.append(precision(system, noise, study.fit(folder, *shared, *private, *own)))
    return rows


def precision(system: str, noise: float | None, metrics: Row) -> Row:
    keys = [*(f"precision@{k}" for k in PLACES), "steps", "seconds", "stand_in"]
    return {"system": system, "noise": noise, **{key: metrics[key] for key in keys}}


def draw(rows: Sequence[Row], file: Path) -> None:
    """ε over the users of a coordinate with its ratio to DP-SGD's, or precision against the number of places."""
    if "sigma" not in rows[0]:
        named = {
            f"{row['system']} {row['noise'] or ''}": [(k, 100 * row[f"precision@{k}"]) for k in PLACES] for row in rows
        }
        return study.lines({"": named}, file, "k", "precision@k, %", log="")
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key, title in (("dp_sgd", "ε"), ("exact", "ε"), ("printed", "ε"), ("ratio", "printed, times DP-SGD's")):
        for row in rows:
            if row[key] is not None:
                name = f"{COLUMNS[key]}, σ = {row['sigma']:g}"
                panels.setdefault(title, {}).setdefault(name, []).append((row["count"], row[key]))
    study.lines(panels, file, "users who touch each coordinate", f"at δ = {DELTA:g}")


PARSER = study.parser(__doc__, fits=True)
PARSER.add_argument("--study", choices=("theorem", "precision", "context"), default="theorem")

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS, draw)
