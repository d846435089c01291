"""How well a model does: ranks over the whole catalogue, with and without seen items, and chances of a click."""

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
