"""Models of clicks without privacy: what they compute, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dprec.data import ClickBatch
from dprec.data.draws.batch import PersonBatch
from dprec.errors import UserError
from dprec.models import DLRM, PCTR, Learner, Logistic
from dprec.models.clicks import FeatureTables
from tests.models.shares import checked_shares
from tests.zoo.recommenders import MODELS, NUMBERS, VOCABULARIES, clicks_of

KINDS = ("dlrm", "pctr", "logistic")


def written_out(tables: FeatureTables, categories: torch.Tensor, mean: bool = False) -> list[list[torch.Tensor]]:
    """Each record's vector of each feature, an id at a time."""
    out = []
    for record in categories.tolist():
        vectors = []
        for table, bag in zip(tables.tables, record, strict=True):
            read = [table.weight[1 + i] for i in bag if i >= 0]
            total = sum(read, torch.zeros(table.weight.shape[1]))
            vectors.append(total / max(1, len(read)) if mean else total)
        out.append(vectors)
    return out


@pytest.mark.parametrize("kind", [DLRM, PCTR, Logistic])
@pytest.mark.parametrize(("numbers", "vocabularies"), [(0, (5, 3)), (3, ())])
def test_records_may_have_counts_or_categories_alone(
    kind: type[DLRM], numbers: int, vocabularies: tuple[int, ...]
) -> None:
    """Every parameter then has elements, as private training wants."""
    model = kind(numbers, vocabularies)
    categories = torch.zeros(4, len(vocabularies), 1, dtype=torch.long)
    losses = model.losses(ClickBatch(torch.ones(4, numbers), categories, torch.ones(4)))
    assert losses.shape == (4,)
    assert all(parameter.numel() for parameter in model.parameters())


def test_dlrm_compares_every_pair() -> None:
    model, batch = MODELS["dlrm"](), clicks_of(5)
    counts = model.bottom(torch.log1p(batch.numbers.clamp(min=0)) / 10)
    for record, vectors in enumerate(written_out(model.tables, batch.categories)):
        all_of_them = [counts[record], *vectors]
        pairs = [all_of_them[i] @ all_of_them[j] for i in range(len(all_of_them)) for j in range(i)]
        logit = model.output(model.top(torch.cat([counts[record], torch.stack(pairs)])))
        assert torch.allclose(model.logits(batch)[record], logit[0], atol=1e-6)


def test_pctr_sees_all_features_side_by_side() -> None:
    model, batch = MODELS["pctr"](), clicks_of(5)
    assert [table.weight.shape for table in model.tables.tables] == [(12, 3), (5, 2), (3, 2)]  # int(2 V^¼)
    for record, vectors in enumerate(written_out(model.tables, batch.categories, mean=True)):
        seen = torch.cat([torch.log1p(batch.numbers[record].clamp(min=0)) / 10, *vectors])
        assert torch.allclose(model.logits(batch)[record], model.output(model.network(seen))[0], atol=1e-6)


def test_the_full_models_have_the_published_sizes() -> None:
    with torch.device("meta"):
        mlperf = DLRM(13, [100] * 26, dim=128, bottom=[512, 256], top=[1024, 1024, 512, 256])
        adafest = PCTR(13, [1472, 577, 82741])
    linear = [part for part in mlperf.modules() if isinstance(part, torch.nn.Linear)]
    assert [(part.in_features, part.out_features) for part in linear] == [
        *((13, 512), (512, 256), (256, 128)),
        *((128 + 27 * 26 // 2, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)),
    ]
    assert [table.embedding_dim for table in adafest.tables.tables] == [12, 9, 33]
    assert [part.out_features for part in adafest.modules() if isinstance(part, torch.nn.Linear)] == [598] * 4 + [1]


@pytest.mark.parametrize("name", KINDS)
def test_a_longer_bag_of_padding_changes_nothing(name: str) -> None:
    model, batch = MODELS[name](), clicks_of(6)
    padded = ClickBatch(batch.numbers, F.pad(batch.categories, (0, 3), value=-1), batch.clicked)
    assert torch.allclose(model.losses(batch), model.losses(padded), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (DLRM, {"dim": 0}),
        (DLRM, {"bottom": [4, 0]}),
        (DLRM, {"top": [-1]}),
        (DLRM, {"pooling": "max"}),
        (PCTR, {"hidden": [0]}),
        (PCTR, {"embedding_std": -1.0}),
        (Logistic, {"learning_rate": 0.0}),
    ],
)
def test_arguments_that_make_no_model_are_refused_in_one_line(kind: type[Learner], wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"model\.{next(iter(wrong))}"):
        kind(NUMBERS, VOCABULARIES, **wrong)


def test_low_rank_tables_are_products() -> None:
    tables = FeatureTables([10, 5], dims=[6, 2], low_rank=3)
    first, second = tables(torch.tensor([[[9, 3], [4, -1]]]))
    rows = tables.tables[0].weight[[10, 4]] @ tables.maps[0].weight.T
    assert torch.allclose(first, rows.sum(0))
    assert torch.equal(second, tables.tables[1].weight[[5]])  # narrow enough as it is
    assert [tuple(t.weight.shape) for t in tables.tables] == [(11, 3), (6, 2)]
    assert not tables(torch.tensor([[[-1, -1], [4, 4]]]))[0].any()


@pytest.mark.parametrize("name", KINDS)
def test_a_persons_share_is_that_of_the_mean_over_all_their_records(name: str) -> None:
    model, records = MODELS[name]().double(), clicks_of(13)
    records = ClickBatch(records.numbers.double(), records.categories, records.clicked.double())
    present = np.arange(7) < np.array([3, 1, 7, 2])[:, None]
    people = PersonBatch.padded(records, present)
    gradients = checked_shares(model, people)
    means = torch.stack([model.losses(people.select([person]).records).mean() for person in range(4)])
    assert torch.allclose(model.losses(people), means)
    assert all(bool(own.any()) for own in gradients["output.bias" if name != "logistic" else "counts.bias"])
