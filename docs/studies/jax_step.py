"""jax_privacy's clipped sum of a tied model: how far it is from plain autograd, and how long it takes.

The model scores all items by the table that it reads, against the mean of the items so far. `jax_privacy.clipped_grad`
is given the loss of one user. The truth is one backward pass of PyTorch for each user, in float64. A step has 128 users
with 50 items each, over MovieLens-1M's 3,416.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import study
from study import Row

BOUND = 0.01  # below every user's norm here, so that all are clipped
COLUMNS = {
    "system": "system",
    "ms": "ms of the processor",
    "ratio": "plain = 1",
    "error": "error",
}


def drawn(items: int, users: int, length: int, dim: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return weights, and histories of which the item after each is the target."""
    rng = np.random.default_rng(0)
    weights = {"items": 0.1 * rng.standard_normal((items, dim)), "mix": np.eye(dim)}
    return {name: value.astype(np.float32) for name, value in weights.items()}, rng.integers(
        0, items, (users, length + 1)
    )


def exact(weights: dict[str, np.ndarray], histories: np.ndarray) -> dict[str, np.ndarray]:
    """Return the clipped sum by one backward pass of PyTorch for each user."""
    table, mix = (torch.tensor(weights[name], dtype=torch.float64, requires_grad=True) for name in ("items", "mix"))
    total = [torch.zeros_like(table), torch.zeros_like(mix)]
    for history in torch.from_numpy(histories):
        places = torch.arange(1, len(history), dtype=torch.float64).unsqueeze(1)
        hidden = table[history[:-1]].cumsum(0) / places @ mix
        own = torch.autograd.grad(F.cross_entropy(hidden @ table.T, history[1:]), [table, mix])
        norm = torch.stack([gradient.norm() for gradient in own]).norm()
        total = [s.detach() + g * min(1.0, BOUND / float(norm)) for s, g in zip(total, own, strict=True)]
    return {"items": total[0].numpy(), "mix": total[1].numpy()}


def measure(asked: Namespace) -> list[Row]:
    try:
        import jax
        import jax.numpy as jnp
        import jax_privacy
    except ImportError as error:
        sys.exit(f"jax_privacy is not installed: pip install jax-privacy ({error})")
    weights, histories = drawn(*((50, 6, 8, 4) if asked.quick else (3_416, 128, 50, 64)))

    def loss(weights: Any, history: Any) -> Any:
        places = jnp.arange(1, len(history))[:, None]
        hidden = weights["items"][history[:-1]].cumsum(0) / places @ weights["mix"]
        chances = jax.nn.log_softmax(hidden @ weights["items"].T)
        return -jnp.take_along_axis(chances, history[1:, None], 1).mean()

    def clipped(**options: Any) -> Any:
        return jax.jit(jax_privacy.clipped_grad(loss, l2_clip_norm=BOUND, keep_batch_dim=False, **options))

    plain = jax.jit(jax.grad(lambda weights, users: jax.vmap(loss, (None, 0))(weights, users).sum()))
    systems = {
        "jax, plain gradient": plain,
        "jax_privacy": clipped(),
    }
    if not asked.quick:
        systems["jax_privacy, 16 users at once"] = clipped(microbatch_size=16)
    steps = {name: lambda made=made: jax.block_until_ready(made(weights, histories)) for name, made in systems.items()}
    truth, rows = exact(weights, histories), []
    seconds = study.turns(steps, 2 if asked.quick else 5)
    usual = float(np.median(seconds["jax, plain gradient"]))
    for name, taken in seconds.items():
        row: Row = {"system": name, "ms": 1e3 * float(np.median(taken)), "ratio": float(np.median(taken)) / usual}
        if name != "jax, plain gradient":
            found = {key: np.asarray(value, np.float64) for key, value in steps[name]().items()}
            off = sum(np.square(found[key] - truth[key]).sum() for key in truth)
            row |= {"error": float(np.sqrt(off / sum(np.square(v).sum() for v in truth.values())))}
        rows.append(row)
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
