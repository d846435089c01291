"""Optimizers beside torch's, and the one that knows its noise."""

from __future__ import annotations

import pytest
import torch

from dprec import Privacy, Sequences, Transformer
from dprec.models.learning import optimizers
from tests.quiet import trainer


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(7, 3)), torch.nn.Parameter(torch.randn(5))]


def gradients(steps: int) -> list[list[torch.Tensor]]:
    torch.manual_seed(1)
    return [[torch.randn(7, 3), torch.randn(5)] for _ in range(steps)]


def stepped(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter], steps: int = 5) -> torch.Tensor:
    for of_step in gradients(steps):
        for parameter, gradient in zip(trained, of_step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in trained])


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_adam_bc_is_adam(decay: float) -> None:
    ours, theirs = parameters(), parameters()
    found = stepped(optimizers.make("adam_bc", iter(ours), 0.1, decay, 0.0), ours)
    torch.testing.assert_close(found, stepped(torch.optim.Adam(theirs, 0.1, weight_decay=decay), theirs))


def test_the_noise_is_taken_off_the_mean_square() -> None:
    """Gradients ±3 with a noise of 2 in each: the divisor is √(9 - 4), and half the noise where less is left."""
    for size, noise, divisor in ((3.0, 2.0, 5**0.5), (3.0, 3.0, 1.5), (0.1, 3.0, 1.5)):
        one = torch.nn.Parameter(torch.zeros(1))
        optimizer = optimizers.make("adam_bc", iter([one]), 1.0, 0.0, 0.0, noise_std=lambda noise=noise: noise)
        one.grad = torch.tensor([size])
        optimizer.step()
        assert one.item() == pytest.approx(-size / divisor, rel=1e-5)


@pytest.mark.parametrize("kind", ["adam", "adam_bc"])
def test_rows_that_are_all_there_move_as_a_whole_table(kind: str) -> None:
    whole, rows = parameters()[:1], parameters()[:1]
    for trained, sparse in ((whole, False), (rows, True)):
        optimizer = optimizers.make(kind, iter(trained), 0.1, 0.0, 0.0, noise_std=lambda: 0.9)
        for gradient, _ in gradients(4):
            trained[0].grad = gradient.to_sparse(1) if sparse else gradient.clone()
            optimizer.step()
    torch.testing.assert_close(rows[0], whole[0])


def test_state_is_taken_up_again() -> None:
    once, twice = parameters(), parameters()
    expected = stepped(optimizers.make("adam_bc", iter(once), 0.1, 0.0, 0.0, noise_std=lambda: 0.5), once, 6)
    optimizer = optimizers.make("adam_bc", iter(twice), 0.1, 0.0, 0.0, noise_std=lambda: 0.5)
    for step, of_step in enumerate(gradients(6)):
        if step == 3:
            state = optimizer.state_dict()
            optimizer = optimizers.make("adam_bc", iter(twice), 0.1, 0.0, 0.0, noise_std=lambda: 0.5)
            optimizer.load_state_dict(state)
        for parameter, gradient in zip(twice, of_step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(torch.cat([parameter.detach().flatten() for parameter in twice]), expected)


def test_a_private_run_tells_its_noise() -> None:
    data = Sequences(dataset="synthetic", synthetic_users=60, synthetic_items=20, batch_size=20, max_length=8)
    model = Transformer(data.items, dim=8, max_length=8, heads=1, blocks=1, optimizer="adam_bc")
    privacy = Privacy(noise_multiplier=2.0, max_norm=0.5)
    trainer(privacy, max_steps=3).fit(model, data)
    optimizer = model.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, optimizers.AdamBC)
    assert optimizer.noise_std() == pytest.approx(2.0 * 0.5 / 20)
