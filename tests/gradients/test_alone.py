"""Operations without a rule: users are taken one by one, clipped over all parameters together, under any strategy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec import private
from dprec.errors import UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import AdaFEST, LazyDP
from tests.one_micro_batch import add_clipped
from tests.zoo.forms import Product

USERS, LENGTH, ITEMS, DIM = 6, 5, 11, 4


def product(x: Tensor, weight: Tensor) -> Tensor:
    return Product.apply(x, weight)  # type: ignore[no-any-return]


def distances(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cdist(x, weight)


class Histories(nn.Module):
    """A tied table, a norm with a rule, and a weight that meets an operation without one."""

    def __init__(self, mixed: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.norm = nn.LayerNorm(DIM)
        self.weight = nn.Parameter(torch.randn(DIM, DIM))
        self.mixed = mixed

    def losses(self, ids: Tensor) -> Tensor:
        x = self.mixed(self.norm(self.table(ids)), self.weight)
        wanted = (x[:, :-1] * self.table(ids[:, 1:])).sum(-1) - (x[:, :-1] * self.table(ids[:, 1:] // 2)).sum(-1)
        return (F.softplus(-wanted) * (ids[:, 1:] != 0)).sum(1)


def histories(users: int = USERS) -> Tensor:
    ids = torch.randint(1, ITEMS, (users, LENGTH), generator=torch.Generator().manual_seed(0))
    return ids * (torch.arange(LENGTH) < torch.arange(users).unsqueeze(1) % LENGTH + 1)


def model(mixed: Callable[[Tensor, Tensor], Tensor]) -> Histories:
    torch.manual_seed(0)
    return Histories(mixed)


@pytest.fixture(autouse=True)
def not_said_yet() -> None:
    alone._say.cache_clear()
    warnings.simplefilter("ignore")


def released(module: Histories, dtype: torch.dtype | None = None, **options: Any) -> dict[str, Tensor]:
    settings: dict[str, Any] = {
        "noise_multiplier": 0.5,
        "noise_seed": 1,
        "expected_batch": 8,
        "steps": 2,
        "verify": 0.0,
    }
    optimizer = SGD(module.parameters(), lr=0.5)
    run = private(
        module, optimizer, histories(40), losses=module.losses, loader={"sampling_seed": 3}, **settings | options
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
        for batch in run:
            run.step(batch)
    with run.public():
        return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.full
@pytest.mark.parametrize("strategy", [None, LazyDP, AdaFEST])
@pytest.mark.parametrize("mode", ["flat", "auto-v"])
def test_training_is_that_of_the_same_model_written_with_rules(strategy: Any, mode: str) -> None:
    found, wanted = (
        released(model(mixed), clipping=mode, sparsity=strategy and strategy()) for mixed in (product, torch.matmul)
    )
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


def test_the_self_check_finds_nothing_wrong_with_it() -> None:
    released(model(product), verify=1.0, sparsity=AdaFEST())


def test_training_in_mixed_precision_stays_within_the_bound() -> None:
    found, wanted = released(model(product), torch.bfloat16), released(model(torch.matmul), torch.bfloat16)
    assert all(torch.allclose(found[name], value, atol=0.05) for name, value in wanted.items())


def test_it_is_said_once_in_one_line_that_names_the_operation() -> None:
    module = model(distances)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        released(module, steps=2)
    lines = [str(each.message) for each in said if "taken alone" in str(each.message)]
    assert len(lines) == 1
    assert "parameter 'weight' is used by cdist" in lines[0]
    assert "slower" in lines[0]
    assert "\n" not in lines[0]


def test_a_batch_without_a_row_for_each_user_is_not_taken_apart() -> None:
    weight = nn.Parameter(torch.randn(DIM, DIM))

    def losses(batch: Any) -> Tensor:
        return torch.cdist(batch[0], weight).sum((1, 2))

    class Pair(tuple):
        def __len__(self) -> int:
            return USERS

    with pytest.raises(UserError, match="cdist.*no per-user gradient rule"):
        add_clipped(
            {"w": torch.zeros(DIM, DIM)}, {"w": weight}, losses,
            Pair((torch.randn(USERS, LENGTH, DIM), torch.randn(3, DIM))), Clipping(),
        )  # fmt: skip
