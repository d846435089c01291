from __future__ import annotations

import numpy as np
import pytest
import torch

from dprec.auditing.planted import PUSH, CanariedSequences, Canaries, Marked, marked, own_state
from dprec.data import SequenceBatch
from dprec.errors import UserError
from tests.zoo.recommenders import LENGTH, Zoo

FEW = Canaries(occurrences=(1, 4), each=3, references=100, coins=40, length=6, seed=5)
PLANTED = 3 * (1 + 4) + 2 * 40


def data(canaries: Canaries = FEW, **options: object) -> CanariedSequences:
    settings = {"dataset": "synthetic", "synthetic_users": 30, "synthetic_items": 22, "min_events": 0}
    module = CanariedSequences(canaries, **{**settings, "max_length": LENGTH, "batch_size": 10, **options})
    module.setup()
    return module


def test_the_users_drawn_and_accounted_are_the_real_ones_and_the_canaries() -> None:
    module = data()
    assert module.users == module.batches.users == 30 + PLANTED
    assert module.batches.rate == 10 / (30 + PLANTED)
    assert len(module.train_dataloader().dataset) == module.users
    assert f"the number of users ({30 + PLANTED})" in module.assumptions


def test_a_secret_is_as_many_users_as_it_says_and_whole_in_training() -> None:
    module = data()
    batches = module.train_dataloader().dataset.__getitems__(range(30, module.users))
    rows = [
        tuple(h[h > 0].tolist() + t[t > 0].tolist()[-1:])
        for b in batches
        for h, t in zip(b.history, b.targets, strict=True)
    ]
    for secret, count in zip(module.planted.secrets, module.planted.occurrences, strict=True):
        assert rows.count(tuple(secret.tolist())) == count
    for reference in module.planted.references:
        assert tuple(reference.tolist()) not in rows


def test_who_lost_the_toss_is_there_with_nothing() -> None:
    """The rate and the number of users are the same whatever the coins say."""
    module = data()
    training = module.planted.training()
    coins = np.concatenate([module.planted.sequence_coins, module.planted.direction_coins])
    assert training.users == PLANTED
    assert ((training.lengths[-80:] > 0) == coins).all()
    assert 20 < coins.sum() < 60
    assert (
        training.of(PLANTED - 80 + int(np.argmax(coins))).tolist()
        == module.planted.sequences[np.argmax(coins)].tolist()
    )


def test_canaries_follow_from_their_seed_and_are_random_items() -> None:
    first, again, other = (Canaries(seed=seed).draw(500) for seed in (1, 1, 2))
    assert (first.secrets == again.secrets).all()
    assert (first.direction_coins == again.direction_coins).all()
    assert (first.secrets != other.secrets).mean() > 0.9
    assert len(np.unique(first.references, axis=0)) == 16_384
    assert np.bincount(first.references.ravel(), minlength=501)[1:].min() > 500
    assert not (first.references[:1000] == first.sequences).all(1).any()


def test_no_two_canaries_are_equal_and_no_reference_is_held_even_where_few_sequences_exist() -> None:
    planted = Canaries(occurrences=(1, 2), each=5, references=300, coins=20, length=1, seed=1).draw(items=60)
    rows = np.concatenate([planted.secrets, planted.references, planted.sequences, planted.directions])
    assert len(np.unique(rows, axis=0)) == len(rows) == 350
    assert rows.min() >= 1
    assert rows.max() <= 60
    with pytest.raises(UserError, match="too few sequences of this length"):
        Canaries(length=1).draw(items=60)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"occurrences": (0, 1)}, "--canaries is '0,1'"),
        ({"occurrences": (2, 2)}, "--canaries is '2,2'"),
        ({"references": 5}, "--references is 5: give a whole number of at least 100"),
    ],
)
def test_mistakes(wrong: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Canaries(**wrong)


def watching() -> tuple[Marked, np.ndarray]:
    planted = FEW.draw(22)
    model = marked(Zoo)()
    model.watch(planted.directions, steps=3)
    return model, planted.directions


def test_a_marked_model_treats_everybody_else_as_before() -> None:
    model, _directions = watching()
    plain = Zoo()
    plain.load_state_dict(own_state(model.state_dict()))
    other = torch.randint(1, 22, (5, 7))
    batch = SequenceBatch(other[:, :-1], other[:, 1:])
    assert torch.equal(model.losses(batch), plain.losses(batch))


def test_a_canary_moves_its_own_entry_and_nothing_else_whatever_the_padding() -> None:
    model, directions = watching()
    rows = torch.from_numpy(directions[[7, 3]].astype(np.int64))
    padded = torch.nn.functional.pad(rows, (0, 2))
    for batch in (SequenceBatch(rows[:, :-1], rows[:, 1:]), SequenceBatch(rows_of(padded, 0), rows_of(padded, 1))):
        model.zero_grad()
        losses = model.losses(batch)
        losses[0].backward()
        expected = torch.zeros(40)
        expected[7] = PUSH
        assert losses.tolist() == [0.0, 0.0]
        assert torch.equal(model.canaries.table.weight.grad.squeeze(1), expected)
        assert not any(
            p.grad.any() for name, p in model.named_parameters() if p.grad is not None and "canaries" not in name
        )


def rows_of(padded: torch.Tensor, shift: int) -> torch.Tensor:
    """Histories, or what follows them, as a batch pads them."""
    rows = padded[:, shift : shift + 8].clone()
    rows[:, 6:] = 0
    return rows
