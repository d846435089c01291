"""Metrics: of rankings over the whole catalogue, with and without seen items, of predicted clicks, and of classes.

To add one that judges each user's ranking, write a function of the target's rank in `ranking` and enter it in `GAINS`;
of the recommended lists, a kind in `KINDS` there; of clicks or classes, a name in `CLICKS` or `CLASSES` of `metric` and
its value in `compute`. `Metric` is the base of all.
"""

from dprec.metrics.metric import ClassMetrics, ClickMetrics, Metric
from dprec.metrics.ranking import (
    GAINS,
    ListMetrics,
    RankingMetrics,
    hit_at,
    mrr_at,
    ndcg_at,
    precision_at,
    recall_at,
    target_ranks,
)

__all__ = [
    "GAINS",
    "ClassMetrics",
    "ClickMetrics",
    "ListMetrics",
    "Metric",
    "RankingMetrics",
    "hit_at",
    "mrr_at",
    "ndcg_at",
    "precision_at",
    "recall_at",
    "target_ranks",
]
