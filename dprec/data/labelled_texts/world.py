"""Generated texts whose class hangs on rare words: what tells a table that learns from one that does not."""

from __future__ import annotations

import numpy as np

from dprec.data.labelled_texts.log import Texts
from dprec.errors import UserError

TELLING = 0.25  # share of the words that speak for a class, all of them outside the most frequent
FREQUENT = 50
STRAY = 0.2
NOBODY = -1
SHORTEST, LONGEST = 6, 24


def invented_texts(records: int, classes: int, words: int, users: int | None = None, seed: int = 0) -> Texts:
    """Records of words `w0`, `w1`, ... of falling frequency. Some rare words speak for a class.

    A word that speaks for another class than the record's stays with chance `STRAY`; else one for the record's class
    takes its place. Each record has a word for its class. With `users`, records are dealt to so many people at random.

    >>> made = invented_texts(3, classes=2, words=500)
    >>> len(made), made.texts[0].split()[0][0], set(made.labels.tolist()) <= {0, 1}
    (3, 'w', True)
    """
    if records < 1 or words <= 2 * FREQUENT:
        raise UserError(
            f"data.synthetic_records is {records} and data.synthetic_words is {words}: give at least 1 record and "
            f"{2 * FREQUENT + 1} words"
        )
    world = np.random.default_rng([seed, 0])
    speaks_for = np.where(world.random(words) < TELLING, np.arange(words) % classes, NOBODY)
    speaks_for[:FREQUENT] = NOBODY
    chance = 1 / np.arange(1, words + 1)
    rng = np.random.default_rng([seed, 1])
    lengths = rng.integers(SHORTEST, LONGEST + 1, records)
    labels = rng.integers(0, classes, records)
    own = rng.choice(words, lengths.sum(), p=chance / chance.sum())
    label_of = np.repeat(labels, lengths)
    replaced = (speaks_for[own] != NOBODY) & (speaks_for[own] != label_of) & (rng.random(len(own)) >= STRAY)
    replaced[np.cumsum(lengths) - 1] = True  # each record's last word is one for its class
    for label in range(classes):
        telling = np.flatnonzero(speaks_for == label)
        places = np.flatnonzero(replaced & (label_of == label))
        own[places] = rng.choice(telling, len(places), p=chance[telling] / chance[telling].sum())
    texts = [" ".join(f"w{word}" for word in text) for text in np.split(own, np.cumsum(lengths)[:-1])]
    owners = None if users is None else rng.integers(0, users, records)
    return Texts(texts, None, labels, owners, None if owners is None else [str(owner) for owner in owners])
