"""What a private run asks of a model and of data is told by names alone, and what lacks one is refused by it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.contract import AsksOfAll, MixesUsers, Model, SharesRows, UserData, offers, refuse_without
from dprec.data import PoissonBatches
from dprec.errors import UserError
from dprec.models import Transformer


class Plain(nn.Module):
    def losses(self, batch: Tensor) -> Tensor:
        return batch.sum(1)


class Wrapped(nn.Module):
    """Hands on what it holds, as wrappers of compiled modules do."""

    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.held, name)


def test_a_model_needs_no_base_and_may_be_wrapped() -> None:
    for model in (Plain(), Wrapped(Plain())):
        assert offers(model, Model)
        assert not any(offers(model, part) for part in (SharesRows, AsksOfAll, MixesUsers))


def test_the_packages_models_offer_all_that_is_asked_for() -> None:
    model = Transformer(items=20)
    for part in (Model, SharesRows, AsksOfAll):
        assert offers(model, part)
        assert offers(Wrapped(model), part)


def test_data_needs_a_length_and_items() -> None:
    assert offers(torch.zeros(3, 2), UserData)
    assert offers([1, 2], UserData)
    assert not offers(iter([1, 2]), UserData)
    assert not offers(PoissonBatches(4, 2), UserData)


@pytest.mark.parametrize(
    ("thing", "part", "said"),
    [
        (
            nn.Linear(1, 1),
            Model,
            r"Linear has no losses\(batch\), which has to return one loss .*: advice",
        ),
        (Plain(), SharesRows, r"Plain has no shared_rows\(\), which has to return tables .*: advice"),
        (Plain(), AsksOfAll, r"Plain has no releases, which has to return what it will ask for.*: advice"),
        (
            {1: 2}.items(),
            UserData,
            r"dict_items has no __getitem__\(user\), which has to return all .*: advice",
        ),
    ],
)
def test_what_is_lacking_is_named_with_what_it_has_to_do(thing: object, part: type, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}$"):
        refuse_without(thing, part, "advice")
