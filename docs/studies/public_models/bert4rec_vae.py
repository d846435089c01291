"""The BERT of jaywonchung/BERT4Rec-VAE-Pytorch: a checkout on PYTHONPATH."""

from argparse import Namespace

import torch
from models.bert import BERTModel
from torch.nn.functional import cross_entropy, pad


class BERT4Rec(BERTModel):
    def __init__(self, items: int, max_length: int, dim: int = 64, masked: float = 0.2):
        sizes = {"bert_hidden_units": dim, "bert_num_blocks": 2, "bert_num_heads": 2, "bert_max_len": max_length + 1}
        super().__init__(Namespace(num_items=items - 1, bert_dropout=0.1, model_init_seed=0, **sizes))
        self.mask, self.masked, self.longest = items, masked, max_length + 1

    def losses(self, batch):
        whole = torch.cat([batch.history[:, :1], batch.targets], 1)
        wanted = whole * (torch.rand(whole.shape) < self.masked)
        logits = self(whole.masked_fill(wanted != 0, self.mask)).transpose(1, 2)
        losses = cross_entropy(logits, wanted, ignore_index=0, reduction="none")
        return losses.sum(1) / (wanted != 0).sum(1).clamp(min=1)

    def scores(self, batch):
        last = (batch.history != 0).sum(1)
        return self(pad(batch.history, (0, 1)).scatter(1, last[:, None], self.mask))[range(len(last)), last]

    def forward(self, history):  # which adds its whole table of positions
        return super().forward(pad(history, (0, self.longest - history.shape[1])))[:, : history.shape[1]]
