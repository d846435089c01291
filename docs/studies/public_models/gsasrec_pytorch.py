"""The gSASRec of asash/gSASRec-pytorch: a checkout on PYTHONPATH."""

from gsasrec import GSASRec as Theirs
from torch import randint
from torch.nn.functional import logsigmoid, softplus


class GSASRec(Theirs):
    def __init__(self, items: int, max_length: int, dim: int = 64, negatives: int = 16, sharpness: float = 0.75):
        super().__init__(items - 1, max_length, dim, 1, 2, 0.1, reuse_item_embeddings=True)
        self.item_embedding.weight.data *= 0.05  # tied tables start small: docs/bring_your_model.md
        rate = negatives / (items - 2)  # of the items that a position draws as negatives
        self.drawn, self.beta = negatives, rate * (sharpness * (1 - 1 / rate) + 1 / rate)  # gBCE's power of positives

    def losses(self, batch):
        real = batch.targets != 0
        vectors = self(batch.history.masked_fill(batch.history == 0, self.num_items + 1))[0].unsqueeze(2)
        items = batch.targets.unsqueeze(2), randint(1, self.num_items + 1, (*real.shape, self.drawn))
        positive, negative = ((vectors * self.item_embedding(each)).sum(3) for each in items)
        each = softplus(negative).sum(2) - self.beta * logsigmoid(positive).squeeze(2)
        return (each * real).sum(1) / real.sum(1).clamp(min=1)

    def scores(self, batch):
        last = (batch.history != 0).sum(1) - 1
        vectors = self(batch.history.masked_fill(batch.history == 0, self.num_items + 1))[0]
        return (vectors[range(len(last)), last] @ self.item_embedding.weight.T)[:, :-1]
