"""A log for EANA's task with three features of context: an entity, a unigram and a bigram of each activity.

The paper's own log is not public. In this one a person has a few interests, an activity is an entity of one of them,
its unigram is a word of that interest, and its bigram is that word with the word before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

PEOPLE, ENTITIES, ACTIVITIES, TOPICS, WORDS = 20_000, 10_000, 25, 200, 2_000
TABLES = ("embedding*", "own_context*", "context_vectors*")
RECIPE = "recipes/movielens20m_dual_encoder_paper_sgd.yaml"


def written(runs: Path, quick: bool) -> Path:
    """Return the log, written if it is not there."""
    file = runs / "activities.csv"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        frame = invented(120, 60) if quick else invented(PEOPLE, ENTITIES)
        frame.write_csv(file)
    return file


def settings(log: Path) -> list[str]:
    """The recipe of the films, with this log, 90 % of the people for training and a Transformer over the context."""
    words = min(WORDS, 2 * ENTITIES)
    given = {
        "data.dataset": "file", "data.path": str(log), "data.user_column": "person", "data.item_column": "entity",
        "data.time_column": "time", "data.context": f"{{unigram: {words}, bigram: {4 * words}}}",
        "data.test_users": "0.1", "model.tower": "transformer", "model.context": "null",
        "model.learning_rate": "1",  # at the films' 3 a Transformer diverges
    }  # fmt: skip
    return [RECIPE, *(word for key, value in given.items() for word in (f"--{key}", value))]


def invented(people: int, entities: int, seed: int = 0) -> pl.DataFrame:
    """Return activities of people: person, entity, unigram, bigram, time.

    >>> frame = invented(3, 50)
    >>> frame.shape, frame.columns
    ((75, 5), ['person', 'entity', 'unigram', 'bigram', 'time'])
    """
    rng = np.random.default_rng(seed)
    interests = rng.integers(0, TOPICS, (people, 3))
    topic = interests[np.arange(people)[:, None], rng.integers(0, 3, (people, ACTIVITIES))]  # (P, A)
    rank = np.minimum(rng.zipf(1.5, topic.shape), entities) - 1
    entity = (topic * 7_919 + rank) % entities  # the head of a topic's entities is its own
    word = (topic * 31 + np.minimum(rng.zipf(2.0, topic.shape), 10)) % WORDS
    before = np.concatenate([np.zeros((people, 1), int), word[:, :-1]], axis=1)
    person, time = np.indices(topic.shape)
    bigram = [f"{first} {second}" for first, second in zip(before.ravel(), word.ravel(), strict=True)]
    return pl.DataFrame(
        {
            "person": person.ravel(),
            "entity": entity.ravel(),
            "unigram": word.ravel(),
            "bigram": bigram,
            "time": time.ravel(),
        }
    )
