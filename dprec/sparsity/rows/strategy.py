"""What a sparsity strategy is: which rows of a table may change, where noise goes and when, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.optim import Optimizer

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.rows.tables import RowSpace

Noised = Literal["chosen", "touched", "later"]  # "later": by `update`, not in the gradient


@dataclass(frozen=True)
class BatchRows:
    """What the users of one batch do to the rows of a strategy's tables. Private."""

    users: int
    user: Tensor  # (n,) distinct pairs of a user
    row: Tensor  # (n,) and a row where the user's gradient is not zero, in the strategy's space, none of `shared`
    shared: Tensor  # rows that change whoever is drawn, ascending: what the model declares in `shared_rows`
    summed: Callable[[float], tuple[Tensor, Tensor]]
    # Given the most that one user may add, over all tables: the rows (m,) of the sum of the users' gradients,
    # ascending, and the norm of each (m,).


class Strategy:
    """Rules over the rows of some tables. A subclass gives `choose`, and says what its choice costs.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    Where several strategies name a table, each chooses among what the ones before it left.
    """

    noised: ClassVar[Noised] = "chosen"  # where noise goes
    owes: ClassVar[bool] = False  # whether rows may still owe noise after a step
    looks: ClassVar[bool] = False  # whether `choose` looks at the batch, and so needs noise of its own
    broken: ClassVar[str | None] = None  # why what it trains is not private

    def __init__(self, tables: str | list[str] = "*", least_rows: int = 0) -> None:
        self.tables = [tables] if isinstance(tables, str) else list(tables)
        self.least_rows = least_rows
        if least_rows < 0:
            self.refuse("least_rows", least_rows)

    @property
    def relative_noise(self) -> float:
        """The noise multiplier of the choice in each step, per noise multiplier of the gradients; ∞ costs nothing."""
        return float("inf")

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        """The sums that `prepare` asks for, over all users, and `enter`, over those of a period.

        `periods` is how many there are in data that is trained on period by period, 0 for other data.
        """
        return ()

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        """Learn, before the first step, what it rules over and how much noise its choices and gradients get.

        `sigma` is the noise multiplier of a choice, `std` the standard deviation in each entry of a step's gradient.
        """
        self.space, self.sigma, self.std, self.noise = space, sigma, std, noise

    def prepare(self, users: int, portions: Callable[[], Iterable[Portion]], sums: ExactSums) -> None:
        """Look at all users once; `portions` holds how often each looks up each row."""

    def enter(self, period: int, users: int, portions: Callable[[], Iterable[Portion]], sums: ExactSums) -> None:
        """Look at the users of a period before its first step; training may enter it again after others."""

    def choose(self, batch: BatchRows | None, among: Tensor | None) -> Tensor | None:
        """Return the rows that may change in this step, ascending and some of those in `among`; None stands for all.

        `batch` is None unless the strategy `looks`. Padding rows may be among the rows: they stay as they are.
        """
        return among

    def read(self, name: str, ids: Tensor | None) -> None:
        """Hear that rows of a table are about to be read; None stands for all of them."""

    def bind(self, optimizer: Optimizer, step: int) -> None:
        """Learn how tables are updated, before the first step of this process, which is the run's step `step`."""

    def update(self, optimizer: Optimizer) -> None:
        """Apply one step to tables whose noise is paid later, and take their gradients from the optimizer."""

    def settle(self) -> None:
        """Pay all noise that is owed: somebody is about to see the weights."""

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
