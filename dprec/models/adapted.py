"""Any torch module as a model of a recipe: a Learner that holds it, and takes its arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from dprec.lightning import kinds
from dprec.models.base import Recommender
from dprec.models.clicks import ClickModel
from dprec.models.learning.learner import Learner

Arguments = dict[str, inspect.Parameter]
_FIXED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def fits(kind: Any) -> bool:
    """Whether a recipe may name this class: a module, but no Learner, with `scores` to rank or `logits` to predict."""
    other = isinstance(kind, type) and issubclass(kind, nn.Module) and not issubclass(kind, Learner)
    return other and any(callable(getattr(kind, name, None)) for name in ("scores", "logits"))


@lru_cache(maxsize=16)
def adapted(kind: Any) -> type[Learner]:
    """Return a Learner that holds a module of this kind.

    A module that ranks has `losses(batch)`, one for each user, and `scores(batch)`; one that predicts clicks has
    `logits(batch)`. Its arguments are the recipe's, and those of the data that it names, such as `items`. A
    LightningModule has its own optimizer; for any other module the recipe sets a Learner's.
    """
    base: type[Learner] = Recommender if callable(getattr(kind, "scores", None)) else ClickModel
    lightning = issubclass(kind, kinds("LightningModule"))
    own, of_base = _arguments(kind), _arguments(base)
    options = {} if lightning else _arguments(Learner)

    class Adapted(base):  # type: ignore[misc, valid-type]
        def __init__(self, **given: Any) -> None:
            super().__init__(**{name: value for name, value in given.items() if name in of_base | options})
            self.module: Any = _made(kind, {name: value for name, value in given.items() if name in own})
            if lightning:
                vars(self.module)["log"] = self.log  # self.log knows Lightning's current hook

        def losses(self, batch: Any) -> Tensor:
            losses: Any = getattr(self.module, "losses", super().losses)
            return losses(batch)

        def scores(self, batch: Any) -> Tensor:
            return self.module.scores(batch)

        def logits(self, batch: Any) -> Tensor:
            return self.module.logits(batch)

        def configure_optimizers(self) -> Any:
            return self.module.configure_optimizers() if lightning else super().configure_optimizers()

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_save_checkpoint(checkpoint)
            kept = checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY]
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = {name: kept[name] for name in own if name in kept}

        def state_dict(self, *args: Any, **options: Any) -> Any:
            """Return the module's state: a checkpoint has the module's own names."""
            return self.module.state_dict(*args, **options)

        def load_state_dict(self, state: Mapping[str, Any], *args: Any, **options: Any) -> Any:
            return self.module.load_state_dict(state, *args, **options)

    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    each = [one.replace(kind=one.KEYWORD_ONLY) for one in (of_base | options | own).values()]
    vars(Adapted.__init__)["__signature__"] = inspect.Signature([self, *each])
    Adapted.__module__, Adapted.__name__, Adapted.__qualname__ = kind.__module__, kind.__name__, kind.__qualname__
    return Adapted


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    """Make a module in its own frame: save_hyperparameters reads the callers' arguments."""
    return kind(**given)


def _arguments(kind: Any) -> Arguments:
    """Return the arguments that a class names, by name, with their types."""
    init: Any = kind.__init__
    try:
        types = typing.get_type_hints(init)
    except NameError:  # a type that is imported for type checkers only
        types = {}
    named = [*inspect.signature(init).parameters.values()][1:]
    return {one.name: one.replace(annotation=types.get(one.name, Any)) for one in named if one.kind not in _FIXED}
