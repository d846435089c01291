"""What every kernel takes of a card, and the least time its launch can take there: compiled and computed, not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dprec.benchmarks.card.compiler import compiled
from dprec.benchmarks.card.launches import BOX_MULLER, PHILOX, Launch, launches
from dprec.benchmarks.common.report import Row


@dataclass(frozen=True)
class Card:
    """A card by its maker's data sheet: what it moves, and what it computes at most."""

    name: str
    bandwidth: float  # bytes a second
    floats: float  # operations on float32 a second, without tensor cores
    doubles: float  # the same on float64
    tensor_cores: float  # operations on tf32 a second


CARDS = {
    80: Card("A100 SXM 80 GB", 2.039e12, 19.5e12, 9.7e12, 156e12),
    90: Card("H100 SXM", 3.35e12, 67e12, 34e12, 495e12),
}


def rows(say: Callable[[str], None], quick: bool = False) -> list[Row]:
    """Compile every launch for every card; with `quick`, those of one width for one card."""
    found: list[Row] = []
    for capability in list(CARDS)[-1:] if quick else CARDS:
        for launch in launches((64,), (0,)) if quick else launches():
            say(f"sm_{capability}: {launch.kernel}, {launch.case}")
            for kernel in compiled(launch.run, capability):
                made = {"target": f"sm_{capability}", "case": launch.case} | asdict(kernel)
                found.append(made | _least(launch, capability))
    return found


def _least(launch: Launch, capability: int) -> dict[str, Any]:
    """Return what a launch moves and computes, and the longest of the times that a card needs for each at least."""
    card = CARDS[capability]
    philox, doubles = launch.normals // 2 * PHILOX, launch.normals // 2 * BOX_MULLER
    seconds = max(
        launch.bytes / card.bandwidth,
        (launch.products - launch.on_cores - launch.thrice - launch.in_doubles) / card.floats,
        (launch.on_cores + 3 * launch.thrice) / card.tensor_cores,
        philox / card.floats,  # whole numbers: as many a second at most
        (doubles + launch.in_doubles) / card.doubles,
    )
    return {
        "card": card.name,
        "bytes": launch.bytes,
        "operations": launch.products + philox + doubles,
        "computed_ms": seconds * 1e3,
    }
