"""The data of a recipe with canaries among its users. They are read, sampled and accounted like other data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dprec.auditing.planted.canaries import Canaries, Planted, together
from dprec.data.selection.protocol import Loaded
from dprec.data.sequences import Sequences
from dprec.errors import UserError


class CanariedSequences(Sequences):
    """`Sequences` whose training users include canaries; the test users do not.

    Args:
        canaries: how many of each kind.
        options: arguments of `Sequences`.

    >>> few = Canaries(each=1, coins=10)
    >>> data = CanariedSequences(few, dataset="synthetic", synthetic_users=50, batch_size=10, min_events=0)
    >>> data.users, len(next(iter(data.test_dataloader())).target)
    (265, 50)
    """

    def __init__(self, canaries: Canaries, **options: Any) -> None:
        super().__init__(**options)
        self.canaries = canaries
        if canaries.length > self.max_length:
            raise UserError(
                f"--length is {canaries.length} but a model sees {self.max_length} items of a history: "
                "lower --length, or raise data.max_length"
            )

    def load(self) -> Loaded:
        if self._loaded is None:
            real = super().load()
            self._planted = self.canaries.draw(len(real.catalogue))
            training = together(real.training, self._planted.training())
            self._loaded = replace(real, training=training, name=f"{real.name} with canaries")
        return self._loaded

    @property
    def planted(self) -> Planted:
        self.load()
        return self._planted
