"""Classifies texts with any encoder of the `transformers` library, unchanged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import PersonTextBatch, TextBatch
from dprec.errors import UserError, first_line, refuse_missing, refuse_no_folder
from dprec.metrics.metric import ClassMetrics
from dprec.models.learning.learner import Learner, refuse_unless

SMALL: Mapping[str, Any] = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
}  # fmt: skip

# Encoders that ignore padding, tested with random weights of any size. MobileBERT, ConvBERT and FNet do not.
ALONE = (
    "albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "gpt2",
    "layoutlm", "megatron-bert", "modernbert", "roberta", "roberta-prelayernorm", "roformer", "squeezebert",
    "xlm-roberta",
)  # fmt: skip
# Encoders whose positions start after the padding id.
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
            more |= {"num_labels": classes, "ignore_mismatched_sizes": True}  # a new head starts at random
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
        """Refuse an encoder that may read padding, so that a record's result depends on the batch's longest record."""
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
        config.pad_token_id = padding  # GPT-2's configuration may name none, but finds the last token by it
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
        mask[:, 0] = 1  # a text without tokens would attend to padding, which depends on others
        scores: Tensor = self.encoder(input_ids=batch.ids, attention_mask=mask, **segments).logits
        return scores

    def losses(self, batch: TextBatch | PersonTextBatch) -> Tensor:
        """Return each record's cross-entropy; of users, the mean of their records'."""
        texts = batch.records if isinstance(batch, PersonTextBatch) else batch
        each = F.cross_entropy(self.logits(texts), texts.label, reduction="none")
        return batch.mean(each) if isinstance(batch, PersonTextBatch) else each

    def forward(self, batch: TextBatch) -> Tensor:
        """Return the probability of each class (B, classes): the result of trainer.predict for each batch."""
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


# Pretrained encoders, and low-rank updates (LoRA) of their weights.


def pretrained(kind: str, name: str, instead: str = "", **options: Any) -> Any:
    """Return an encoder from a folder or the hub, as a class of transformers reads it.

    Code in the folder is not run, and pickled weights are not read. `instead` is the setting's other value.
    """
    refuse_no_folder(name, "model.encoder")
    if Path(name, "adapter_config.json").is_file():
        raise UserError(
            f"model.encoder {name} holds adapters of peft: save the encoder with them merged, as merge_and_unload of "
            "peft returns it"
        )
    refuse_missing(["transformers"], "model.encoder", "text")
    import transformers

    where = {"local_files_only": True} if Path(name).is_dir() else {}
    try:
        return getattr(transformers, kind).from_pretrained(
            name, use_safetensors=True, trust_remote_code=False, **where, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"model.encoder {name} cannot be loaded ({first_line(error)[:120]}): give a folder that save_pretrained "
            f"wrote{instead}"
        ) from None


class LowRankLinear(nn.Module):
    """y = W0 x + b + B A x. B starts at 0, so training starts from W0."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = base.weight
        self.A = nn.Parameter(like.new_empty(rank, base.in_features))
        self.B = nn.Parameter(like.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """Encoders read the dtype from this."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.A), self.B)


class LowRankTable(nn.Module):
    """Row i is W0[i] + A[i] B. A starts at 0, so training starts from W0; A is a table, which may have strategies."""

    def __init__(self, base: nn.Embedding, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Embedding(
            base.num_embeddings,
            rank,
            padding_idx=base.padding_idx,
            _weight=base.weight.new_zeros(len(base.weight), rank),
        )
        self.B = nn.Parameter(base.weight.new_empty(base.embedding_dim, rank).normal_(0, 1 / math.sqrt(rank)))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.base(ids) + F.linear(self.A(ids), self.B)


def add_low_rank(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Put low-rank updates on the linear maps and tables whose names end with one of these.

    >>> block = nn.ModuleDict({"query": nn.Linear(4, 6), "words": nn.Embedding(9, 4), "out": nn.Linear(6, 2)})
    >>> add_low_rank(block, {"query": 2, "words": 1})
    >>> sum(p.numel() for p in block.parameters() if p.requires_grad)  # (4 + 6) 2, 9 + 4, 6 2 + 2
    47
    """
    for ending, rank in ranks.items():
        found = [name for name, part in model.named_modules() if _ends(name, ending) and _adaptable(part)]
        if not found:
            raise UserError(f"model.low_rank names {ending}, but no linear map or table is called so: {_names(model)}")
        if rank < 1:
            raise UserError(f"model.low_rank.{ending} is {rank}: give a rank of at least 1")
        for name in found:
            part = model.get_submodule(name)
            parent, _, last = name.rpartition(".")
            updated = LowRankTable(part, rank) if isinstance(part, nn.Embedding) else LowRankLinear(part, rank)
            setattr(model.get_submodule(parent), last, updated)


def freeze(model: nn.Module, names: list[str]) -> None:
    """Freeze the parts whose names end with one of these."""
    for ending in names:
        found = [part for name, part in model.named_modules() if _ends(name, ending)]
        if not found:
            raise UserError(f"model.frozen names {ending}, but no part is called so: {_names(model)}")
        for part in found:
            part.requires_grad_(False)


def _adaptable(part: nn.Module) -> bool:
    return type(part) in (nn.Linear, nn.Embedding)


def _ends(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")


def _names(model: nn.Module) -> str:
    """Return, for messages, the last parts of the names of linear maps and tables."""
    last = {name.rpartition(".")[2] for name, part in model.named_modules() if _adaptable(part)}
    return f"give some of {', '.join(sorted(last))}"
