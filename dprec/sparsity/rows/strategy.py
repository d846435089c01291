"""What every sparsity strategy is: it rules over the rows of some tables."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar

from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.rows.tables import RowSpace


class Strategy:
    """The base of both kinds: `RowChoice` says which rows may change, `NoiseSchedule` when rows get their noise.

    Tensors that a strategy keeps or returns live on the device of its tables, `space.device`.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.
    """

    broken: ClassVar[str | None] = None  # why what it trains is not private

    def __init__(self, tables: str | list[str] = "*", least_rows: int = 0) -> None:
        self.tables = [tables] if isinstance(tables, str) else list(tables)
        self.least_rows = least_rows
        if least_rows < 0:
            self.refuse("least_rows", least_rows)

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        """Learn, before the first step, what it rules over and how much noise its choices and gradients get.

        `sigma` is the noise multiplier of a choice, `std` the standard deviation in each entry of a step's gradient.
        """
        self.space, self.sigma, self.std, self.noise = space, sigma, std, noise

    def phrase(self, sigma: float) -> str:
        """What the guarantee's sentence says of it, given the noise multiplier of its choices."""
        return f"{type(self).__name__} on {', '.join(self.tables)}"

    def settings(self) -> dict[str, Any]:
        """JSON-able: its class and arguments, each of which it keeps under the argument's name."""
        names = {
            name
            for cls in type(self).__mro__
            for name in signature(vars(cls).get("__init__", object.__init__)).parameters
        }
        given = {name: getattr(self, name) for name in sorted(names) if hasattr(self, name)}
        return {"strategy": type(self).__qualname__, **given}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""

    def refuse(self, name: str, value: object) -> None:
        raise UserError(f"privacy.sparsity: {type(self).__name__}.{name} is {value}: that makes no strategy")
