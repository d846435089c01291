"""Metrics: of rankings over the whole catalogue, with and without seen items, and of predicted clicks."""

from dprec.metrics.clicks import ClickMetrics
from dprec.metrics.ranking import GAINS, RankingMetrics, hit_at, ndcg_at, precision_at, target_ranks

__all__ = [
    "GAINS",
    "ClickMetrics",
    "RankingMetrics",
    "hit_at",
    "ndcg_at",
    "precision_at",
    "target_ranks",
]
