"""Metrics: of rankings over the whole catalogue, with and without seen items, and of predicted clicks."""

from dprec.metrics.clicks import ClickMetrics
from dprec.metrics.lists import ListMetrics
from dprec.metrics.ranking import GAINS, RankingMetrics, hit_at, mrr_at, ndcg_at, precision_at, recall_at
from dprec.metrics.ranks import target_ranks

__all__ = [
    "GAINS",
    "ClickMetrics",
    "ListMetrics",
    "RankingMetrics",
    "hit_at",
    "mrr_at",
    "ndcg_at",
    "precision_at",
    "recall_at",
    "target_ranks",
]
