"""What every sparsity strategy is: it rules over the rows of some tables."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any, ClassVar, NoReturn

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
            self.refuse("least_rows", least_rows, "give a whole number from 0 up")

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        """Learn, before the first step, what it rules over and how much noise its choices and gradients get.

        `sigma` is the noise multiplier of a choice, `std` the standard deviation in each entry of a step's gradient.
        """
        self.space, self.sigma, self.std, self.noise = space, sigma, std, noise

    def phrase(self, sigma: float) -> str:
        """What the guarantee's sentence says of it, given the noise multiplier of its choices."""
        return f"{type(self).__name__} on {', '.join(self.tables)}"

    def settings(self) -> dict[str, Any]:
        """JSON-able: its class and arguments, each of which it keeps under the argument's name.

        A resumed run is refused where they differ, so an argument that is not kept is refused too.
        """
        given: dict[str, Any] = {}
        for cls in type(self).__mro__:
            for name in _arguments(cls):
                if not hasattr(self, name):
                    raise UserError(
                        f"privacy.sparsity: {cls.__name__}.__init__ takes `{name}` and does not keep it, so a resumed "
                        f"run could not tell whether it changed: keep `{name}` as self.{name}"
                    )
                given[name] = getattr(self, name)
        return {"strategy": type(self).__qualname__, **dict(sorted(given.items()))}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""

    def refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        """Refuse an argument, and say what is wanted in its place: "give a number above 0"."""
        raise UserError(f"privacy.sparsity: {type(self).__name__}.{name} is {value}: {wanted}")


def _arguments(cls: type) -> list[str]:
    """Return what the `__init__` that a class writes itself takes by name; what it hands on is named by its bases."""
    if "__init__" not in vars(cls) or cls is object:
        return []
    _, *parameters = signature(vars(cls)["__init__"]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
