"""How well a model ranks: metrics over the whole catalogue, with and without the items a user has seen."""

from dprec.metrics.ranking import GAINS, HIT, NDCG, RankingMetrics, hit_at, ndcg_at, precision_at, target_ranks

__all__ = ["GAINS", "HIT", "NDCG", "RankingMetrics", "hit_at", "ndcg_at", "precision_at", "target_ranks"]
