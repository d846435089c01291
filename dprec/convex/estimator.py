"""The common base of the estimators: parameters that can be read, set and cloned, and scores of a linear model."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np
from scipy.special import expit

from dprec.accounting.ledger import Ledger
from dprec.convex.losses import Loss, find_loss
from dprec.convex.release.measurements import bounded_rows
from dprec.convex.release.regimes import refuse_word
from dprec.errors import UserError

Model = TypeVar("Model", bound="Estimator")


class Estimator:
    """A linear model with the interface of scikit-learn: nothing is checked or computed before `fit`.

    A subclass is a dataclass whose fields are its arguments.

    A row longer than `norm` is scaled down, in `fit` and in `predict`.
    """

    coef_: np.ndarray  # (d,)
    ledger_: Ledger
    guarantee_: str
    n_features_in_: int

    loss: str
    norm: float
    sparsity: int
    target_bound: float

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: Model, **params: Any) -> Model:
        """Set arguments by name; return self."""
        for name, value in params.items():
            if name not in self._names():
                raise UserError(
                    f"{type(self).__name__} has no argument '{name}': give one of {', '.join(self._names())}"
                )
            setattr(self, name, value)
        return self

    def _refuse_words(self) -> None:
        """Refuse arguments that are no numbers where numbers are asked for."""
        for name, each in inspect.signature(type(self).__init__).parameters.items():
            kinds, value = str(each.annotation).split(" | "), getattr(self, name, None)
            if {"int", "float"} & set(kinds) and not (value is None and "None" in kinds):
                refuse_word(name, value)

    def decision_function(self, features: Any) -> np.ndarray:
        """Return a score for each row: the log-odds of a click under the logistic loss, a number under the squared."""
        if not hasattr(self, "coef_"):
            raise UserError(f"this {type(self).__name__} is not fitted: call fit first")
        rows = bounded_rows(features, self.norm, self.sparsity)
        if rows.shape[1] != self.n_features_in_:
            raise UserError(f"the features have {rows.shape[1]} columns: give {self.n_features_in_}, as many as in fit")
        return rows @ self.coef_

    def predict(self, features: Any) -> np.ndarray:
        """Return 0 or 1 for each row, a number under the squared loss."""
        scores = self.decision_function(features)
        return (scores > 0).astype(np.int64) if self._loss().classes else scores

    def predict_proba(self, features: Any) -> np.ndarray:
        """Return the probabilities of 0 and of 1 for each row, (rows, 2)."""
        if not self._loss().classes:
            raise UserError("loss='squared' predicts numbers, not probabilities: use predict, or loss='logistic'")
        chance = expit(self.decision_function(features))
        return np.stack([1 - chance, chance], axis=1)

    def _loss(self) -> Loss:
        return find_loss(self.loss, self.target_bound)
