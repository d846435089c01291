"""Parameters that are moved at random for a while, and put back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from dprec.checks.same_draws import SameDraws


class Shaken:
    """Moves parameters, and of tables only the rows that were read so far: nobody sees the others move.

    Once they are put back, nobody sees that they were moved: their version is what it was.

    >>> table, bias = nn.Parameter(torch.zeros(4, 1)), nn.Parameter(torch.zeros(1))
    >>> shaken = Shaken({"table": table, "bias": bias}, ["table"], {"table": [0]})
    >>> shaken.read({"table": torch.tensor([[2, 0], [2, 2]])})
    >>> shaken.by(0.1)
    >>> (table != 0).flatten().tolist(), bool(bias != 0)
    ([False, False, True, False], True)
    >>> shaken.restore()
    >>> bool(table.any() or bias.any())
    False
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], tables: Collection[str], padding: Mapping[str, Sequence[int]]
    ) -> None:
        self._parameters = parameters
        self._padding = {name: list(padding.get(name, ())) for name in parameters}
        self._read: dict[str, Tensor | None] = dict.fromkeys(tables, torch.zeros(0, dtype=torch.int64))
        self._saved: list[tuple[Tensor, Tensor | None, Tensor]] = []
        self._whole: set[str] = set()  # parameters of which everything is saved
        self.new = True  # whether rows were read that were not before, since somebody set this to False

    def read(self, reads: Mapping[str, Tensor | None]) -> None:
        """Hear that these rows of parameters are read; None stands for all of one's."""
        for name, ids in reads.items():
            before = self._read.get(name)
            if before is not None:
                now = None if ids is None else torch.cat([before.to(ids.device), ids.flatten()]).unique()
                self.new |= now is None or len(now) != len(before)
                self._read[name] = now

    def by(self, size: float) -> None:
        """Add noise of this standard deviation. Padding stays: no step ever moves it, and models rely on it."""
        with SameDraws(), torch.no_grad():
            for name, parameter in self._parameters.items():
                rows, still, weights = self._read.get(name), self._padding[name], parameter.data
                if rows is not None:
                    rows = rows[~torch.isin(rows, torch.tensor(still, dtype=rows.dtype, device=rows.device))]
                    values = weights[rows]
                    self._saved.append((parameter, rows, values))
                    weights[rows] = values + size * torch.randn_like(values)
                    continue
                if name not in self._whole:
                    self._saved.append((parameter, None, weights.clone()))
                    self._whole.add(name)
                held = [weights[row].clone() for row in still]
                weights.add_(torch.randn_like(weights), alpha=size)
                for row, value in zip(still, held, strict=True):
                    weights[row] = value

    def restore(self) -> None:
        """Put everything back as it was before the first move."""
        with torch.no_grad():
            for parameter, rows, values in reversed(self._saved):
                if rows is None:
                    parameter.data.copy_(values)
                else:
                    parameter.data[rows] = values
        self._saved.clear()
        self._whole.clear()
