"""Hugging Face's encoders and decoders as they are, from small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import clipped_sums, off, one_by_one

pytestmark = pytest.mark.full

transformers = pytest.importorskip("transformers")

USERS, LENGTH, ITEMS = 4, 6, 13
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
ENCODER = {"vocab_size": ITEMS, "max_position_embeddings": 16, "pad_token_id": 0, "num_labels": 3, **SIZES}
DROP = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": ITEMS, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
NO_DROP = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2(attention: str) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **NO_DROP, attn_implementation=attention))


def albert(attention: str) -> Any:
    """One block for all layers."""
    sizes = ENCODER | DROP | {"num_hidden_layers": 2, "embedding_size": 6, "classifier_dropout_prob": 0.0}
    config = transformers.AlbertConfig(**sizes, attn_implementation=attention)
    return transformers.AlbertForSequenceClassification(config)


def llama(attention: str) -> Any:
    sizes = {"vocab_size": ITEMS, "max_position_embeddings": 16, "num_key_value_heads": 1, "pad_token_id": 0, **SIZES}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attn_implementation=attention))


def t5(attention: str) -> Any:
    """Encoder and decoder over one table, with a trained bias of positions that all layers share."""
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 4}
    config = transformers.T5Config(
        vocab_size=ITEMS, dropout_rate=0.0, decoder_start_token_id=0, attn_implementation=attention, **sizes
    )
    return transformers.T5ForConditionalGeneration(config)


def losses_of(model: Any) -> Callable[[Any], Tensor]:
    def losses(batch: Any) -> Tensor:
        ids, kinds = batch
        more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        logits = model(input_ids=ids, attention_mask=(ids != 0).long(), **more).logits
        if logits.dim() == 2:
            return F.cross_entropy(logits, kinds, reduction="none")
        wanted = ids[:, 1:]
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
        return (each * (wanted != 0)).sum(1)

    return losses


class Batch(tuple):
    def __len__(self) -> int:
        return len(self[0])

    def select(self, users: Any) -> Batch:
        return Batch(tensor[list(users)] for tensor in self)


@pytest.mark.parametrize(
    ("make", "attention", "mode"),
    [
        (albert, "eager", "auto-v"),
        (gpt2, "eager", "auto-v"),
        (gpt2, "sdpa", "flat"),
        (llama, "sdpa", "auto-v"),
        (t5, "eager", "flat"),
    ],
)
def test_the_clipped_sum_is_exact_through_the_tape(make: Any, attention: str, mode: Any) -> None:
    torch.manual_seed(0)
    model = make(attention).train()
    ids = torch.randint(1, ITEMS, (USERS, LENGTH)) * (torch.arange(LENGTH) < torch.tensor([[6], [2], [4], [3]]))
    kinds, losses, clipping = torch.arange(USERS) % 3, losses_of(model), Clipping(mode, 0.3)
    with mock.patch.object(alone, "_say") as say:
        found = clipped_sums(model, [Batch((ids, kinds))], clipping, losses)
    say.assert_not_called()
    assert off(found, one_by_one(model, Batch((ids, kinds)), clipping, losses)) <= 1e-5
