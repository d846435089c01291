"""The SASRec of pmixer/SASRec.pytorch: the folder `python` of a checkout on PYTHONPATH."""

from argparse import Namespace

import model
import torch
from torch.nn.functional import softplus

# NumPy's positions and new tensors of ids hide whose row is whose; users would be taken one by one.
model.np, model.torch = torch, Namespace(**vars(torch) | {"LongTensor": lambda ids: ids})


class SASRec(model.SASRec):
    def __init__(self, items: int, max_length: int, dim: int = 50, heads: int = 1, dropout: float = 0.2):
        sizes = {"maxlen": max_length, "hidden_units": dim, "num_blocks": 2, "num_heads": heads}
        super().__init__(0, items - 1, Namespace(device="cpu", norm_first=False, dropout_rate=dropout, **sizes))
        for weight in filter(lambda each: each.dim() > 1, self.parameters()):  # as its main.py begins
            torch.nn.init.xavier_normal_(weight)
        self.item_emb.weight.data[0] = self.pos_emb.weight.data[0] = 0.0

    def losses(self, batch):
        negatives, real = torch.randint_like(batch.targets, 1, self.item_num + 1), batch.targets != 0
        positive, negative = self(None, batch.history, batch.targets, negatives)
        return ((softplus(-positive) + softplus(negative)) * real).sum(1) / real.sum(1).clamp(min=1)

    def scores(self, batch):
        last = (batch.history != 0).sum(1) - 1
        return self.log2feats(batch.history)[range(len(last)), last] @ self.item_emb.weight.T
