"""RecBole's SASRec: `pip install recbole==1.2.1`."""

from types import SimpleNamespace

from recbole.model.sequential_recommender import SASRec as Theirs
from torch.nn.functional import cross_entropy

FIELDS = {"USER_ID_FIELD": "user", "ITEM_ID_FIELD": "item", "NEG_PREFIX": "not_", "LIST_SUFFIX": "s", "loss_type": "CE"}
NORMS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "initializer_range": 0.02, "device": "cpu"}


class SASRec(Theirs):
    def __init__(self, items: int, max_length: int, dim: int = 64, heads: int = 2, dropout: float = 0.1):
        sizes = {"hidden_size": dim, "inner_size": 4 * dim, "n_layers": 2, "n_heads": heads}
        drops = {"hidden_dropout_prob": dropout, "attn_dropout_prob": dropout}
        length = {"ITEM_LIST_LENGTH_FIELD": "length", "MAX_ITEM_LIST_LENGTH": max_length}
        super().__init__(FIELDS | NORMS | sizes | drops | length, SimpleNamespace(num=lambda field: items))

    def losses(self, batch):
        last = (batch.history != 0).sum(1).clamp(min=1)
        scores = self(batch.history, last) @ self.item_embedding.weight.T
        return cross_entropy(scores, batch.targets[range(len(last)), last - 1], reduction="none")

    def scores(self, batch):
        return self(batch.history, (batch.history != 0).sum(1)) @ self.item_embedding.weight.T
