"""Encoders of transformers, from configurations and folders, through the tape, beside plain gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from dprec.data import PersonTextBatch, TextBatch, Texts
from dprec.errors import UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import trained_parameters
from tests.one_micro_batch import clipped_sums, off, sum_of_each

transformers = pytest.importorskip("transformers")

from dprec.models import TextClassifier  # noqa: E402

WORDS, CLASSES, LONGEST = 40, 3, 12
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **SIZES, **OFF},
    "roberta": {"model_type": "roberta", "type_vocab_size": 1, **SIZES, **OFF},
    "xlm-roberta": {"model_type": "xlm-roberta", "type_vocab_size": 1, **SIZES, **OFF},
    "distilbert": {
        "model_type": "distilbert", "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12,
        "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
    },
    "modernbert": {
        "model_type": "modernbert", "classifier_pooling": "mean", **SIZES,
        "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3,
    },
}  # fmt: skip
LENGTHS = {"one": [5], "equal": [4, 4, 4], "mixed": [12, 1, 6, 3], "short": [2, 1]}


def classifier(name: str, attention: str = "sdpa", **options: Any) -> TextClassifier:
    """Return a small classifier whose weights are large enough that each token matters."""
    torch.manual_seed(0)
    model = TextClassifier(WORDS, 1, CLASSES, LONGEST, encoder=dict(ENCODERS[name]), attention=attention, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.train()


def batch_of(lengths: Sequence[int], seed: int = 0) -> TextBatch:
    """Return texts of these lengths, each with a word that it holds twice; from the middle on they are second texts."""
    draw = torch.Generator().manual_seed(seed)
    places = torch.arange(max(lengths))
    mask = (places < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(2, WORDS, mask.shape, generator=draw)
    ids[:, -1] = ids[:, 0]
    segments = (places >= torch.tensor(lengths)[:, None] // 2).long() * mask
    label = torch.randint(CLASSES, (len(lengths),), generator=draw)
    return TextBatch(ids.masked_fill(mask == 0, 1), segments, mask, label)


def clipped_sum(model: TextClassifier, batch: Any, clipping: Clipping) -> dict[str, Tensor]:
    """Return the tape's sum, which may take nobody alone."""
    with mock.patch.object(alone, "_say") as say:
        sums = clipped_sums(model, [batch], clipping)
    say.assert_not_called()
    return sums


def plain(model: TextClassifier, everybody: Sequence[TextBatch], clipping: Clipping) -> dict[str, Tensor]:
    """Return the sum of plain gradients of each one's records alone, without padding by others, each clipped."""
    return sum_of_each(trained_parameters(model), [model.losses(own).mean() for own in everybody], clipping)


def records(batch: TextBatch) -> list[TextBatch]:
    return [batch.select([record]) for record in range(len(batch))]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_clipped_sum_is_the_plain_one_at_every_mask_and_length(name: str, attention: str) -> None:
    model = classifier(name, attention)
    assert model.encoder.config._attn_implementation == attention
    for lengths in LENGTHS.values():
        batch, clipping = batch_of(lengths), Clipping("flat", 0.3)
        wanted = plain(model, records(batch), clipping)
        assert off(clipped_sum(model, batch, clipping), wanted) <= 1e-5, lengths
        if len(lengths) > 1 and len(set(lengths)) > 1:  # a mask that is off by one record does not pass
            wrong = TextBatch(batch.ids, batch.segments, batch.mask.roll(1, 0), batch.label)
            assert off(clipped_sum(model, wrong, clipping), wanted) > 1e-3, lengths


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_no_logit(name: str) -> None:
    model = classifier(name).double().eval()
    batch = batch_of(LENGTHS["mixed"])
    together = model.logits(batch)
    for record in range(len(batch)):
        assert torch.allclose(together[record], model.logits(batch.select([record]))[0], atol=1e-12)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"frozen": ["word_embeddings"]}, ["word_embeddings.weight"]),
        ({"low_rank": {"query": 2, "value": 2}}, ["query.base", "value.base"]),
        ({"low_rank": {"word_embeddings": 3}}, ["word_embeddings.base"]),
        ({"frozen": ["embeddings", "encoder"], "low_rank": {"query": 2, "word_embeddings": 2}}, ["base", "LayerNorm"]),
    ],
    ids=["frozen table", "LoRA of maps", "LoRA of the table", "LoRA alone"],
)
def test_frozen_parts_and_low_rank_updates_are_exact(options: dict[str, Any], left: list[str]) -> None:
    model = classifier("bert", **options)
    names = set(trained_parameters(model))
    assert not any(part in name for name in names for part in left)
    assert any(".A" in name for name in names) is ("low_rank" in options)
    batch, clipping = batch_of(LENGTHS["mixed"]), Clipping("flat", 0.3)
    assert off(clipped_sum(model, batch, clipping), plain(model, records(batch), clipping)) <= 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ENCODERS)
def test_a_text_without_a_token_hangs_on_no_longer_one(name: str, attention: str) -> None:
    model, clipping = classifier(name, attention), Clipping("auto-v", 1.0)
    batch = batch_of([12, 0, 0, 2])
    shares = [clipped_sum(model, batch.select([record]), clipping) for record in range(4)]
    wanted = {each: torch.stack([share[each] for share in shares]).sum(0) for each in shares[0]}
    assert off(clipped_sum(model, batch, clipping), wanted) <= 1e-5


def test_a_person_is_clipped_once_over_all_records() -> None:
    model, clipping = classifier("bert"), Clipping("flat", 0.1)
    texts, present = batch_of([5, 3, 9]), torch.tensor([[True, True], [True, False]])
    people = PersonTextBatch.padded(texts, present, ids=1)
    alone = [texts.select(own) for own in ([0, 1], [2])]
    assert off(clipped_sum(model, people, clipping), plain(model, alone, clipping)) <= 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with its tokenizer, as `save_pretrained` writes them."""
    place = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(30))]
    tokenizer = transformers.BertTokenizerFast(vocab=dict(zip(words, range(len(words)), strict=True)))
    tokenizer.save_pretrained(place)
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **SIZES)
    torch.manual_seed(1)
    transformers.BertForSequenceClassification(config).save_pretrained(place)
    return place


def test_an_encoder_and_its_tokenizer_come_from_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"w{n % 30} w3 unmet,{n % 2}\n" for n in range(60)))
    data = Texts(path=str(tmp_path / "texts.csv"), tokenizer=str(folder), max_length=16, batch_size=8)
    model = TextClassifier(**data.sizes, encoder=str(folder))
    assert all(part.training for part in model.modules())  # dropout is kept
    model.eval()
    own = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(model.encoder.state_dict()[name], own.state_dict()[name])
    batch = data.load().log.read(np.array([0, 1]))
    assert batch.ids[0].tolist()[0] == 2
    assert batch.ids[0].tolist()[2:] == [5 + 3, 1, 3]
    assert model.logits(batch).shape == (2, 2)
    assert model.assumptions == [f"the weights of {folder} before training"]
    assert f"the tokenizer {folder}" in data.assumptions


def test_what_does_not_fit_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    def refused(said: str, *sizes: int, **options: Any) -> None:
        with pytest.raises(UserError) as error:
            TextClassifier(*(sizes or (WORDS, 1, CLASSES, LONGEST)), **options)
        assert said in str(error.value)

    refused("35 rows of words and padding 0, the data's tokenizer 40 and 1", encoder=str(folder))
    refused("reads at most 32 tokens: lower it", 35, 0, 2, 64, encoder=str(folder))
    refused("cannot be loaded", encoder=str(tmp_path))
    refused(f"there is no folder {tmp_path}/gone", encoder=f"{tmp_path}/gone")
    refused("there is no folder ./gone", encoder="./gone")
    refused("makes no encoder", encoder={"model_type": "nothing"})
    refused(
        "model.encoder is a convbert, where a record's result may depend",
        encoder={"model_type": "convbert", **SIZES, **OFF},
    )
    refused("sets auto_map, which is not a size", encoder={"model_type": "bert", "auto_map": "somebody/code"})
    refused("no linear map or table is called so: give some of", low_rank={"missing": 2})
    refused("no part is called so", frozen=["missing"])
    refused("model.low_rank.query is 0", low_rank={"query": 0})
    for kind in ("roberta-prelayernorm", "data2vec-text"):
        refused("reads at most 10 tokens", encoder={"model_type": kind, "max_position_embeddings": LONGEST, **SIZES})
    with pytest.raises(UserError, match="there is no folder ./gone"):
        _ = Texts(tokenizer="./gone").sizes
    transformers.BertConfig(vocab_size=WORDS, **SIZES).save_pretrained(tmp_path)  # from which one without words is made
    with pytest.raises(UserError, match=r"holds no tokenizer: save one there with its save_pretrained"):
        _ = Texts(tokenizer=str(tmp_path)).sizes
