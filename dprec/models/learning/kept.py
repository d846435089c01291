"""The state that a checkpoint keeps beside weights, to load and use a model without its data."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

FORMAT = 1  # of the `dprec` part of a checkpoint
PLAIN = (type(None), bool, int, float, str, Tensor)
NOT_PRIVATE = "not private: trained without a guarantee, so the model may reveal anybody's data"


def kept_of(model: Any, trainer: Any) -> dict[str, Any]:
    """Return the `dprec` part of a checkpoint that a trainer writes for a model.

    `dprec.fit` writes more: the recipe, and what a resumed run must have in common with it.
    """
    data = getattr(trainer, "datamodule", None)
    public = getattr(data, "assumptions", None) or ()
    assumed = [*public, *model.assumptions]
    promises = (getattr(callback, "promise", None) for callback in trainer.callbacks)
    promise = next(filter(None, promises), lambda _: {"guarantee": NOT_PRIVATE})
    return kept_as(type(model), model.arguments, data, trainer.global_step, promise(assumed))


def kept_as(
    kind: type, arguments: Mapping[str, Any], data: Any, step: int, guarantee: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the same for a model of this class with these arguments that a script trained."""
    return {
        "format": FORMAT,
        "step": step,
        "run": kind.__name__,
        "model": {"class_path": path_of(kind), "init_args": plain(arguments)},
        "data": {"class_path": "", "init_args": {}},  # the script's data, perhaps a data frame
        **belongings(data),
        "guarantee": guarantee,
        "identity": {},
        "recipe": {},
        "metrics": None,
    }


def arguments_of(made: object, frame: FrameType | None) -> dict[str, Any]:
    """Return the arguments of an object's own class, read from the frames above a base's `__init__`."""
    found: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made:
        named, _, options, values = inspect.getargvalues(frame)
        found = {name: values[name] for name in named[1:]} | values.get(options or "", {})
        frame = frame.f_back
    return found


def belongings(data: Any) -> dict[str, Any]:
    """Return what is needed to use a model of this data: for a ranking, the items' raw ids and how a log is read."""
    if isinstance(data, list):  # the raw ids
        return {"catalogue": packed(data)}
    if not hasattr(data, "catalogue_ids"):
        return {}
    return {
        "catalogue": packed(data.catalogue_ids),
        "context": getattr(data, "context", None),
        "prepared_as": getattr(data, "prepared_as", None),
    }


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a checkpoint can hold if it is read with ``weights_only``.

    >>> plain({"dim": 8, "layers": [64, 32], "made": torch.nn.Linear(1, 1)})
    {'dim': 8, 'layers': [64, 32]}
    """
    return {name: value for name, value in settings.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, [*value.keys(), *value.values()]))
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in PLAIN


def path_of(cls: type) -> str:
    """Return the dotted name of a class, in its package if that exports it: this stays the same if files move.

    >>> from dprec.models.recurrent import GRU
    >>> path_of(GRU), path_of(dict)
    ('dprec.models.GRU', 'builtins.dict')
    """
    package = ".".join(cls.__module__.split(".")[:2])
    public = getattr(sys.modules.get(package), cls.__name__, None) is cls
    return f"{package if public else cls.__module__}.{cls.__qualname__}"


# Many texts as one tensor: torch's safe reader takes a minute for a list of ten million.


MANY = 1 << 16
_BETWEEN = "\0"


def packed(texts: Sequence[str]) -> list[str] | dict[str, Any]:
    """Return texts as a checkpoint keeps them: a list if they are few, otherwise one tensor.

    >>> unpacked(packed(["a", "b"])), unpacked(packed([str(n) for n in range(MANY)]))[-1]
    (['a', 'b'], '65535')
    """
    joined = _BETWEEN.join(texts)
    if len(texts) < MANY or joined.count(_BETWEEN) >= len(texts):
        return list(texts)
    return {"count": len(texts), "utf8": torch.frombuffer(bytearray(joined.encode()), dtype=torch.uint8)}


def unpacked(kept: Any) -> list[str]:
    """Return the texts again; raise ValueError if they were changed."""
    if not isinstance(kept, dict):
        return list(kept)
    utf8, count = kept.get("utf8"), kept.get("count")
    if not isinstance(utf8, torch.Tensor) or utf8.dtype != torch.uint8:
        raise ValueError("texts are no bytes")
    texts = utf8.numpy().tobytes().decode().split(_BETWEEN)
    if len(texts) != count:
        raise ValueError(f"there are {len(texts)} texts where {count} were kept")
    return texts
