"""Which records are held out. Each record's place follows from the record alone, or from its user's id."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from dprec.data.labelled_texts.log import Texts

TRAINING, VALIDATION, TEST = range(3)


def places(records: Texts, test: float, validation: float) -> np.ndarray:
    """(n,) where each record goes. Equal texts, and all records of a user, go to one place.

    A draw by record number would not do: without one record, all later ones would go elsewhere.

    >>> records = Texts([str(n) for n in range(1000)], None, np.zeros(1000, dtype=np.int64))
    >>> np.bincount(places(records, test=0.1, validation=0.05)).tolist()
    [852, 54, 94]
    """
    if records.names is not None:
        keys = [f"user {name}" for name in records.names]
    else:
        pairs = records.pairs or [""] * len(records)
        keys = [f"{text}\n{pair}" for text, pair in zip(records.texts, pairs, strict=True)]
    share = np.array([_share(key) for key in keys])
    return np.where(share < test, TEST, np.where(share < test + validation, VALIDATION, TRAINING))


def _share(key: str) -> float:
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"held out").digest(), "little") / 2**64
