"""Metrics: of rankings over the whole catalogue, with and without seen items, of predicted clicks, and of classes.

To add one that judges each user's ranking, write a function of the held-out items' ranks in `ranking` and enter it in
`GAINS`; of the recommended lists, a kind in `KINDS` of `lists`; of clicks or classes, a name in `CLICKS` or `CLASSES`
of `metric` and its value in `compute`. `Metric` is the base of all; `UserMeans` has confidence intervals.
"""

from dprec.metrics.intervals import UserMeans
from dprec.metrics.lists import KINDS, ListMetrics, diversity_of
from dprec.metrics.metric import ClassMetrics, ClickMetrics, Metric
from dprec.metrics.ranking import (
    GAINS,
    RankingMetrics,
    hit_at,
    map_at,
    mrr_at,
    ndcg_at,
    precision_at,
    recall_at,
    serendipity_at,
    target_ranks,
)

__all__ = [
    "GAINS",
    "KINDS",
    "ClassMetrics",
    "ClickMetrics",
    "ListMetrics",
    "Metric",
    "RankingMetrics",
    "UserMeans",
    "diversity_of",
    "hit_at",
    "map_at",
    "mrr_at",
    "ndcg_at",
    "precision_at",
    "recall_at",
    "serendipity_at",
    "target_ranks",
]
