"""What a run is for: the numbers a kind of model is judged by, and how they are asked for, written and shown."""

from __future__ import annotations

from dprec.cli.classes import path_of
from dprec.errors import UserError
from dprec.models import ClickModel, Recommender
from dprec.run.tasks.clicks import ClickPrediction
from dprec.run.tasks.ranking import Ranking
from dprec.run.tasks.task import Task

__all__ = ["TASKS", "Task", "task_of"]

TASKS: dict[type, type[Task]] = {Recommender: Ranking, ClickModel: ClickPrediction}


def task_of(model: type) -> Task:
    """The task of a model's class."""
    for kind, task in TASKS.items():
        if issubclass(model, kind):
            return task()
    kinds = " or ".join(path_of(kind) for kind in TASKS)
    raise UserError(f"model.class_path: nothing is known by which to judge {path_of(model)}; subclass {kinds}")
