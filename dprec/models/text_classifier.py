"""Classes of texts, by any encoder of the `transformers` library as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import PersonTextBatch, TextBatch
from dprec.errors import UserError, first_line, refuse_missing
from dprec.metrics.metric import ClassMetrics
from dprec.models.learning.learner import Learner, refuse_unless
from dprec.models.networks.pretrained import add_low_rank, freeze, pretrained

SMALL: Mapping[str, Any] = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
}  # fmt: skip

# Encoders that leave padding out, seen at random weights of any size. MobileBERT, ConvBERT and FNet do not.
ALONE = (
    "albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "gpt2",
    "layoutlm", "megatron-bert", "modernbert", "roberta", "roberta-prelayernorm", "roformer", "squeezebert",
    "xlm-roberta",
)  # fmt: skip
# Those that count places from their padding on.
AFTER_PADDING = ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta")
OWN_CODE = ("attn_implementation", "auto_map", "quantization_config", "experts_implementation")  # may load other code


class TextClassifier(Learner):
    """An encoder with a head for classes, trained by the cross-entropy of each record's label.

    Use it to fine-tune an encoder of `transformers` privately. Dropout stays as the encoder has it. Weights that come
    from a folder or from the hub count as public. With `frozen` and `low_rank` fewer weights are trained and get noise.

    Args:
        vocabulary: number of token ids. Comes from the data.
        padding: the id of the padding token. Comes from the data.
        classes: number of classes. Comes from the data.
        max_length: the most tokens of a record. Comes from the data.
        encoder: a folder that `save_pretrained` of transformers wrote, or a name on its hub; or a configuration, whose
            weights start at random: `model_type`, such as bert, roberta or distilbert, and its sizes. By default a BERT
            of one small layer.
        attention: how the encoder computes attention: sdpa or eager; by default as transformers chooses.
        frozen: ends of names of parts that are not trained, such as word_embeddings. By default all are.
        low_rank: rank of a low-rank update (LoRA) for ends of names of linear maps and tables, such as {query: 8,
            value: 8}; their own weights are not trained. By default there are none.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import TextClassifier
    >>> from dprec.data import TextBatch
    >>> tiny = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = TextClassifier(vocabulary=20, padding=0, classes=2, max_length=8, encoder=tiny, low_rank={"query": 2})
    >>> ids = torch.tensor([[3, 9, 4], [5, 0, 0]])
    >>> batch = TextBatch(ids, segments=torch.zeros_like(ids), mask=(ids != 0).long(), label=torch.tensor([1, 0]))
    >>> model.losses(batch).shape
    torch.Size([2])
    """

    from_data: ClassVar = {
        "vocabulary": "it is the size of data.tokenizer, or data.words",
        "padding": "it is the tokenizer's",
        "classes": "set data.labels",
        "max_length": "set data.max_length",
    }

    encoder: Any  # a model of transformers

    def __init__(
        self,
        vocabulary: int,
        padding: int,
        classes: int,
        max_length: int = 128,
        encoder: str | dict[str, int | float | str | bool] | None = None,
        attention: str | None = None,
        frozen: list[str] | None = None,
        low_rank: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        refuse_unless(classes >= 2, "classes", classes, "2 or more")
        refuse_unless(attention in (None, "sdpa", "eager"), "attention", attention, "sdpa, eager or null")
        if self.memory_map is not None:
            raise UserError("model.memory_map: the tables of transformers stay in memory; leave it out")
        named = encoder if isinstance(encoder, str) else None
        self.given = f"the weights of {named} before training" if named else None
        more: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
        if named is not None:
            more |= {"num_labels": classes, "ignore_mismatched_sizes": True}  # a head for other classes starts anew
            kind, instead = "AutoModelForSequenceClassification", ", or a configuration such as {model_type: bert}"
            self.encoder = pretrained(kind, named, instead, **more).train()  # it comes without dropout
        else:
            sizes = {
                **(encoder if isinstance(encoder, dict) else SMALL),
                "vocab_size": vocabulary,
                "num_labels": classes,
            }
            sizes.setdefault("max_position_embeddings", max_length + padding + 2)  # RoBERTa counts from padding + 1
            self.encoder = _made({**sizes, "pad_token_id": padding}, more)
        self._refuse_unknown()
        self._refuse_other_tokens(vocabulary, padding, max_length)
        self.reads_segments = getattr(self.encoder.config, "type_vocab_size", 0) > 1
        freeze(self.encoder, frozen or [])
        add_low_rank(self.encoder, low_rank or {})
        self.metrics = ClassMetrics()

    def _refuse_unknown(self) -> None:
        """Refuse an encoder that may read padding, and so tell records apart by the longest beside them."""
        kind = self.encoder.config.model_type
        if kind not in ALONE:
            raise UserError(
                f"model.encoder is a {kind}, where a record's result may depend on the longest record of its batch: "
                f"give one of {', '.join(ALONE)}"
            )

    def _refuse_other_tokens(self, vocabulary: int, padding: int, max_length: int) -> None:
        """Refuse an encoder that cannot read what the data's tokenizer writes."""
        config = self.encoder.config
        if config.vocab_size < vocabulary or config.pad_token_id not in (None, padding):
            raise UserError(
                f"model.encoder has {config.vocab_size:,} rows of words and padding {config.pad_token_id}, the data's "
                f"tokenizer {vocabulary:,} and {padding}: set data.tokenizer to the encoder's"
            )
        config.pad_token_id = padding  # GPT-2's configuration may name none, and finds the last token by it
        first = padding + 1 if config.model_type in AFTER_PADDING else 0
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and max_length + first > longest:
            raise UserError(
                f"data.max_length is {max_length}, but model.encoder reads at most {longest - first} tokens: lower it"
            )

    @property
    def assumptions(self) -> list[str]:
        return [self.given] if self.given else []

    def logits(self, batch: TextBatch) -> Tensor:
        """Return a logit for each class (B, classes); row i depends only on record i."""
        segments = {"token_type_ids": batch.segments} if self.reads_segments else {}
        mask = batch.mask.clone()
        mask[:, 0] = 1  # of a text without a token: attention over nothing is attention over others' padding
        scores: Tensor = self.encoder(input_ids=batch.ids, attention_mask=mask, **segments).logits
        return scores

    def losses(self, batch: TextBatch | PersonTextBatch) -> Tensor:
        """Return each record's cross-entropy; of users, the mean of their records'."""
        texts = batch.records if isinstance(batch, PersonTextBatch) else batch
        each = F.cross_entropy(self.logits(texts), texts.label, reduction="none")
        return batch.mean(each) if isinstance(batch, PersonTextBatch) else each

    def forward(self, batch: TextBatch) -> Tensor:
        """Return the probability of each class (B, classes): what trainer.predict gives of each batch."""
        return self.logits(batch).softmax(1)

    def measure(self, batch: TextBatch) -> None:
        self.metrics.update(self.logits(batch), batch.label)


def _library() -> Any:
    refuse_missing(["transformers"], "dprec.models.TextClassifier", "text")
    import transformers

    return transformers


def _made(sizes: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    library = _library()
    if named := [key for key in sizes if key.startswith("_") or key in OWN_CODE]:
        raise UserError(f"model.encoder sets {named[0]}, which is not a size: leave it out, and set model.attention")
    try:
        config = library.AutoConfig.for_model(**sizes)
        model: nn.Module = library.AutoModelForSequenceClassification.from_config(config, **options)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"model.encoder {dict(sizes)} makes no encoder ({first_line(error)[:120]}): give a model_type of "
            "transformers and its sizes"
        ) from None
    return model
