"""Re-Attention: its rules against a million draws, its attention against plain matrices, its errors against a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.accounting.release import ExactSums
from dprec.data import Sequences
from dprec.models import DPFormer
from dprec.models.networks import reattention
from dprec.training.callback import Privacy
from tests.privacy.support import BATCH, data, fit
from tests.quiet import with_noise
from tests.zoo.recommenders import ITEMS, batch_of, dpformer, transformer

DRAWS = 1_000_000
VARIANCE, ERROR = torch.tensor(0.3), torch.tensor(0.2)


def noise(*shape: int, std: Tensor | float) -> Tensor:
    return torch.randn(DRAWS, *shape) * std


def sampled(outcomes: Tensor) -> float:
    """The variance of each coordinate of (draws, d), mean over coordinates."""
    return float(outcomes.var(0).mean())


def test_the_sum_of_two_tables() -> None:
    item, position = torch.tensor(0.7), torch.tensor(0.1)
    draws = noise(3, std=item) + noise(3, std=position)
    assert float(reattention.of_embedding(item, position)) == pytest.approx(sampled(draws), rel=0.02)


def test_a_linear_layer() -> None:
    x, weight = torch.randn(4), torch.randn(3, 4)
    inputs, weights = x + noise(4, std=VARIANCE.sqrt()), weight + noise(3, 4, std=ERROR)
    draws = (weights @ inputs.unsqueeze(-1)).squeeze(-1) + noise(3, std=ERROR)
    assert float(reattention.through_linear(x, VARIANCE, weight, ERROR)) == pytest.approx(sampled(draws), rel=0.02)


def test_a_layer_norm_with_its_statistics_held() -> None:
    x, gain = 2 * torch.randn(5), torch.rand(5) + 0.5
    held = (x + noise(5, std=VARIANCE.sqrt()) - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    draws = (gain + noise(5, std=ERROR)) * held + noise(5, std=ERROR)
    found = reattention.through_layer_norm(x, VARIANCE, gain, ERROR, 1e-5)
    assert float(found) == pytest.approx(sampled(draws), rel=0.02)


@pytest.mark.parametrize(
    ("rule", "activation"), [(reattention.through_relu, F.relu), (reattention.through_gelu, F.gelu)]
)
@pytest.mark.parametrize(("mean", "std"), [([0.0], 1.0), ([-0.5, 0.02, 0.9], 0.01), ([-0.5, 0.02, 0.9], 0.3)])
def test_an_activation(rule: Any, activation: Any, mean: list[float], std: float) -> None:
    centre = torch.tensor(mean)
    draws = activation(centre + noise(len(mean), std=std))
    found = rule(centre.view(1, 1, -1), torch.tensor([[std**2]]))
    assert float(found) == pytest.approx(sampled(draws), rel=0.02)


@pytest.mark.parametrize("rule", [reattention.through_relu, reattention.through_gelu])
def test_an_activation_of_what_is_certain_and_of_what_is_hardly_known(rule: Any) -> None:
    mean = torch.tensor([[[-20.0, 0.0, 20.0]]])
    assert rule(mean, torch.zeros(1, 1)) < 1e-30
    at_zero = 0.3408 if rule is reattention.through_relu else 0.25
    assert rule(mean, torch.full((1, 1), 1e-8)).item() == pytest.approx(1e-8 * (at_zero + 1) / 3, rel=0.01)
    assert 0 < rule(mean, torch.full((1, 1), 1e12)).item() < 1e12


@pytest.mark.parametrize("positions", [1, 5, 1000])
def test_stripes_do_not_show(monkeypatch: pytest.MonkeyPatch, positions: int) -> None:
    hidden, variance = torch.randn(2, 9, 6), torch.rand(2, 9)
    query, key = torch.randn(2, 2, 9, 4), torch.randn(2, 2, 9, 4)
    faded = causal_only(torch.rand(9, 9))

    def found() -> list[Tensor]:
        of_attention = [reattention.through_attention(query, key, variance, 0.5, each) for each in (None, faded)]
        return [reattention.through_relu(hidden, variance), *of_attention]

    whole = found()
    monkeypatch.setattr(reattention, "HELD", positions * 12)
    monkeypatch.setattr(reattention, "STRIPE", positions)
    for one, other in zip(whole, found(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def causal_only(logits: Tensor) -> Tensor:
    future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(future, -math.inf)


def causal(logits: Tensor) -> Tensor:
    return causal_only(logits).softmax(-1)


def test_what_attention_leaves_of_the_values_errors() -> None:
    query, key, variance = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 4, 3), torch.rand(1, 4)
    weights = causal(query @ key.mT / math.sqrt(3))[0]
    found = reattention.through_attention(query, key, variance, 1 / math.sqrt(3))[0]
    for place in range(4):
        draws = torch.cat([noise(4, std=variance[0].sqrt()) @ weights[head, place, :, None] for head in (0, 1)], 1)
        assert found[place].item() == pytest.approx(sampled(draws), rel=0.02)


def test_errors_in_keys_inflate_scores_by_what_is_taken_off() -> None:
    query, key, variance = torch.randn(4), torch.randn(4), torch.tensor([[0.5]])
    truth = math.exp(query @ key / 2)
    inflated = ((key + noise(4, std=variance.item() ** 0.5)) @ query / 2).exp().mean()
    wide, keys, _ = reattention.corrected(query.view(1, 1, 1, 4), key.view(1, 1, 1, 4), key.view(1, 1, 1, 4), variance)
    assert (inflated - truth).abs() > 0.05 * truth
    assert float(inflated * (wide @ keys.mT / 2 - query @ key / 2).exp()) == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("width", [3, 7, 8])
def test_widened_attention_is_corrected_attention_and_its_gradient(width: int) -> None:
    query, key, value = (torch.randn(2, 2, 6, width, dtype=torch.double, requires_grad=True) for _ in range(3))
    variance, seen = torch.rand(2, 6, dtype=torch.double), torch.randn(2, 2, 6, width, dtype=torch.double)
    size = query.detach().square().sum(-1)  # (B, heads, T)
    logits = query @ key.mT / math.sqrt(width) - size.unsqueeze(-1) / width * variance[:, None, None] / 2
    explicit = causal(logits) @ value
    widened = reattention.corrected(query, key, value, variance)
    found = F.scaled_dot_product_attention(*widened, is_causal=True, scale=width**-0.5)[..., :width]
    assert torch.allclose(found, explicit)
    gradients = [torch.autograd.grad((y * seen).sum(), (query, key, value)) for y in (found, explicit)]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other)


def explicit(model: DPFormer, history: Tensor) -> Tensor:
    """What `encode` should return, with attention as matrices, block by block."""
    error, heads = model.network.weight_error, model.network.blocks[0].attention.heads
    scale = model.network.blocks[0].scale
    x = model.embedding(history) + scale * model.network.positions.weight[: history.shape[1]]
    variance = model.item_error[history] ** 2 + (scale * model.network.position_error[: history.shape[1]]) ** 2

    def through(layer: nn.Module, x: Tensor, variance: Tensor) -> Tensor:
        if isinstance(layer, nn.LayerNorm):
            return reattention.through_layer_norm(x, variance, layer.weight, error, layer.eps)
        return reattention.through_linear(x, variance, layer.weight, error)

    for block in model.network.blocks:
        part, (first, activation, _, second) = block.attention, block.network
        for number, norm in enumerate(block.norms):
            read, known = (norm(x), through(norm, x, variance)) if block.norm_first else (x, variance)
            if number == 0:
                q, k, v = (
                    m(read).unflatten(-1, (heads, -1)).transpose(1, 2) for m in (part.query, part.key, part.value)
                )
                size = q.square().sum(-1, keepdim=True) / q.shape[-1]
                weights = causal(
                    q @ k.mT / math.sqrt(q.shape[-1])
                    - size * through(part.key, read, known)[:, None, None] / 2
                    + torch.arange(q.shape[2]) * -math.log(part.fade)  # the same as by age, but for the row's sum
                )
                inner = (weights @ v).transpose(1, 2).flatten(2)
                inner_variance = (weights**2 * through(part.value, read, known)[:, None, None]).sum(-1).mean(1)
                last = part.output
            else:
                hidden, last = first(read), second
                rule = reattention.through_relu if isinstance(activation, nn.ReLU) else reattention.through_gelu
                inner, inner_variance = activation(hidden), rule(hidden, through(first, read, known))
            x, variance = x + scale * last(inner), variance + scale**2 * through(last, inner, inner_variance)
            if not block.norm_first:
                x, variance = norm(x), through(norm, x, variance)
    return model.network.last_norm(x)


MANNERS: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu", "heads": 2},
    {"heads": 4, "blocks": 3},
    {"blocks": 1},
    {"network_scale": 0.2, "start_mean": 0.5},
    {"network_scale": 0.01, "start_mean": 0.3, "blocks": 1},
    {"network_scale": 0.3, "norm": "post", "heads": 2},
    {"fade": 0.7, "heads": 2},
]


@pytest.mark.parametrize("manner", MANNERS)
def test_the_whole_model_is_its_rules_in_order(manner: dict[str, Any]) -> None:
    model, history = dpformer(**manner).double().eval(), torch.randint(1, ITEMS, (3, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert torch.allclose(model.encode(history), explicit(model, history))
    plain = transformer(**manner).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(model.encode(history), plain.encode(history), atol=1e-3)


@pytest.mark.parametrize(("manner", "training"), [(manner, place % 2 == 0) for place, manner in enumerate(MANNERS)])
def test_without_errors_it_is_the_transformer_bit_for_bit(manner: dict[str, Any], training: bool) -> None:
    plain, model = (make(dropout=0.3, **manner).train(training) for make in (transformer, dpformer))
    model.load_state_dict(plain.state_dict(), strict=False)
    model.network.set_error(0.0)
    model.item_error.zero_()
    batch, found = batch_of(5), []
    for one in (plain, model):
        torch.manual_seed(1)
        losses = one.losses(batch)
        found.append([losses, *torch.autograd.grad(losses.sum(), list(one.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Asking(DPFormer):
    prepared = 0

    def prepare(self, data: Any, sums: ExactSums) -> None:
        type(self).prepared += 1
        super().prepare(data, sums)


def small(module: Sequences, **options: Any) -> Asking:
    return Asking(module.items, dim=8, max_length=9, blocks=1, feedforward=8, **options)


def test_a_private_run_estimates_the_errors_once_and_pays_for_it(tmp_path: Path) -> None:
    def privacy() -> Privacy:
        return Privacy(epsilon=8.0, noise_multiplier=4.0, delta=1e-3, max_norm=0.5)

    module, half = data(), tmp_path / "half.ckpt"
    Asking.prepared = 0
    first, model = privacy(), small(module, error_scale=3.0)
    fit(first, module, model, max_steps=3).save_checkpoint(half)
    error = 3.0 * 4.0 * 0.5 / BATCH
    assert model.network.weight_error.item() == pytest.approx(error)
    assert model.item_error[0] == 0
    assert (model.item_error[1:] >= error * (1 - 1e-6)).all()
    assert len(model.item_error.unique()) > 2
    assert [event.what for event in first.ledger.events] == ["users by length", "item frequencies", "training"]
    assert "item frequencies" in first.guarantee()
    again, resumed = privacy(), small(module, error_scale=3.0)
    fit(again, module, resumed, half, max_steps=6)
    assert Asking.prepared == 1
    assert torch.equal(resumed.item_error, model.item_error)
    assert torch.equal(resumed.network.weight_error, model.network.weight_error)
    assert [*again.ledger.events.values()] == [1, 1, 6]


def test_errors_follow_from_what_is_read() -> None:
    """p counts each user's last six items, which a step reads, not the whole history; likewise of positions."""
    module, length = data(synthetic_users=500), 5
    model = DPFormer(module.items, dim=8, max_length=length, blocks=1)
    with_noise(model, 0.01)
    model.prepare(module, ExactSums())
    read = [module.training.of(user).tolist()[-length - 1 :] for user in range(module.training.users)]
    read = [items for items in read if len(items) > 1]
    assert max(module.training.lengths) > length + 1
    for item in (1, 7, module.items - 1):
        share = sum(item in items for items in read) / module.training.users
        assert model.item_error[item].item() == pytest.approx(0.01 / share, rel=0.1)
    for position in range(length):
        share = sum(len(items) > position + 1 for items in read) / module.training.users
        assert model.network.position_error[position].item() == pytest.approx(0.01 / share, rel=1e-5)


def test_uniform_frequencies_look_at_nothing() -> None:
    module = data()
    privacy, model = Privacy(noise_multiplier=1.5, delta=1e-2), small(module, frequencies="uniform")
    Asking.prepared = 0
    fit(privacy, module, model)
    assert Asking.prepared == 0
    assert [event.what for event in privacy.ledger.events] == ["training"]
    assert model.network.weight_error.item() == pytest.approx(1.5 / BATCH)
    assert torch.allclose(model.item_error[1:], torch.tensor(1.5 / BATCH / (9 / (module.items - 1))))
