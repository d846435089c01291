"""Tasks: the metrics of each kind of model, and how they are named, computed and shown."""

from __future__ import annotations

from dprec.errors import UserError
from dprec.models import ClickModel, Recommender, TextClassifier
from dprec.models.learning.kept import path_of
from dprec.run.tasks.labels import ClickPrediction, TextClassification
from dprec.run.tasks.ranking import Ranking
from dprec.run.tasks.task import RESAMPLED, Task

__all__ = ["RESAMPLED", "TASKS", "Task", "task_of"]

TASKS: dict[type, type[Task]] = {Recommender: Ranking, ClickModel: ClickPrediction, TextClassifier: TextClassification}


def task_of(model: type) -> Task:
    """The task of a model's class."""
    for kind, task in TASKS.items():
        if issubclass(model, kind):
            return task()
    kinds = " or ".join(path_of(kind) for kind in TASKS)
    raise UserError(f"model.class_path: dprec has no metrics for {path_of(model)}; subclass {kinds}")
