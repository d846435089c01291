"""Reads checkpoints of runs, loads models from them, and writes those of scripts' models."""

from __future__ import annotations

import textwrap
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dprec.cli.classes import build, parameters, refuse_foreign, resolve
from dprec.errors import UserError
from dprec.models import Learner
from dprec.models.learning.kept import FORMAT, NOT_PRIVATE, kept_as, path_of, unpacked
from dprec.notices import say
from dprec.run.saved.folder import RunFolder, checkpoint_of, replace_file


def read_checkpoint(path: Path, every_byte: bool = False) -> dict[str, Any]:
    """Read a checkpoint that dprec wrote, with ``weights_only``, so that it cannot run code.

    With ``every_byte``, the weights are also compared with their checksums, which loading alone does not do.
    """
    try:
        if every_byte:
            _refuse_changed_bytes(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings about a file that is no checkpoint
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch.load raises many kinds of error for a damaged pickle or zip.
        reason = textwrap.shorten(str(error), 80, placeholder=" ...")
        raise UserError(f"{path} cannot be read as a checkpoint ({reason}): give one that dprec.fit wrote") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("dprec"), dict):
        raise UserError(f"{path} is not a checkpoint of dprec: give one that dprec.fit wrote")
    found = checkpoint["dprec"].get("format")
    if found != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {found}, but this version reads {FORMAT}: use the dprec that wrote it"
        )
    if isinstance(kept := checkpoint["dprec"].get("catalogue"), dict):
        try:
            checkpoint["dprec"]["catalogue"] = unpacked(kept)
        except ValueError as error:
            raise UserError(
                f"{path}: {error} in its catalogue, so it is not as dprec.fit wrote it: give another one"
            ) from None
    return checkpoint


def _refuse_changed_bytes(path: Path) -> None:
    with zipfile.ZipFile(path) as packed:
        damaged = packed.testzip()
    if damaged is not None:
        raise ValueError(f"the bytes of {damaged} have changed")


def load_run(run: str, trusted: Sequence[str] = ()) -> tuple[dict[str, Any], Learner]:
    """Return the checkpoint of a run folder or a file, and the trained model in it; no data is needed.

    Print a notice if the run has not taken all of its steps. The author of the file cannot run code here: a class
    outside of dprec is imported only from `trusted` modules.
    """
    path = checkpoint_of(run)
    checkpoint = read_checkpoint(path)
    ours = checkpoint["dprec"]
    refuse_foreign(ours["model"], str(path), trusted)
    described = dict(ours["model"])
    if (described.get("init_args") or {}).get("memory_map"):  # the file must not decide where to write
        described["init_args"] = {**described["init_args"], "memory_map": str(path.parent)}
    model = _made_of(described, checkpoint["state_dict"], path)
    _say_if_unfinished(ours, Path(run))
    return checkpoint, model.eval()


def _made_of(described: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> Learner:
    model: Learner = build(Learner, described, "model")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path} does not fit {described['class_path']} ({reason}): use the code that wrote it"
        ) from None
    return model


def save(trained: Any, file: str | Path, data: Any, **arguments: Any) -> None:
    """Write a ranking module from your own training as a checkpoint for `dprec.load` and the commands.

    The module has `scores(batch)`, which returns a number for every item (B, items) for histories (B, T) of item
    numbers. The checkpoint names its class, which has to be in a module that can be imported.

    Args:
        trained: what `dprec.private` returned, a Lightning trainer, or a module that was trained without privacy,
            which the checkpoint then states.
        file: the checkpoint, such as "mine.ckpt".
        data: the `Sequences` that it was trained on, or the items' raw ids in the order of their numbers, from 1 on.
        arguments: arguments of the module's class that the data does not decide.

    >>> import tempfile, torch
    >>> from dprec import GRU, Sequences, load, private, save
    >>> data = Sequences(dataset="synthetic", synthetic_users=60, synthetic_items=40, batch_size=10)
    >>> data.setup()
    >>> model = GRU(**data.sizes, dim=4)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> training = private(model, optimizer, data.train_dataloader(), epsilon=8, delta=1e-3, steps=2)
    >>> for batch in training:
    ...     loss = training.step(batch)
    >>> save(training, f"{tempfile.gettempdir()}/mine.ckpt", data)
    >>> load(f"{tempfile.gettempdir()}/mine.ckpt").guarantee[:10]
    '(8, 0.001)'
    """
    model, run, steps = _trained(trained)
    if not hasattr(data, "catalogue_ids"):
        if not isinstance(data, Iterable) or isinstance(data, (str, Mapping)):
            raise UserError(f"data is a {type(data).__name__}: give Sequences, or the items' raw ids in a list")
        data = [str(raw) for raw in data]
    name, sizes = path_of(type(model)), getattr(data, "sizes", None) or {"items": len(data) + 1}
    if "<locals>" in name:
        raise UserError(f"{name} is in a function, where nobody finds it again: move the class to the top of a module")
    taken = parameters(resolve(Learner, name, "the model"))
    made = {one: size for one, size in sizes.items() if one in taken} | getattr(model, "arguments", {}) | arguments
    assumed = [*getattr(data, "assumptions", ()), *getattr(model, "assumptions", ())]
    with trained.public() if hasattr(trained, "public") else nullcontext():  # with the noise that rows owed
        state = {one: tensor.detach().cpu().clone() for one, tensor in model.state_dict().items()}
    promise: dict[str, Any] = {"guarantee": NOT_PRIVATE}
    if run is not None:
        if isinstance(data, list):
            assumed = [f"the number of {run.sampling.unit}s ({run.sampling.users})", "the list of items", *assumed]
        promise = run.promise(assumed) | {"guarantee": getattr(trained, "guarantee", run.guarantee)(assumed)}
    ours = kept_as(type(model), made, data, steps, promise)
    _made_of(ours["model"], state, Path(file))  # otherwise it could not be loaded
    replace_file(Path(file), lambda part: torch.save({"state_dict": state, "dprec": ours}, part))


def _trained(trained: Any) -> tuple[nn.Module, Any, int]:
    """Return the module, the private run that trained it, if any, and the number of its steps."""
    if isinstance(trained, nn.Module):
        return trained, None, 0
    if isinstance(module := getattr(trained, "lightning_module", None), nn.Module):
        return module, next((each for each in trained.callbacks if hasattr(each, "promise")), None), trained.global_step
    if not hasattr(trained, "trained"):
        raise UserError(
            f"a {type(trained).__name__} has no model: give a module, a trainer or what dprec.private returned"
        )
    return trained.trained.module, trained.run, trained.steps


def data_of(checkpoint: Mapping[str, Any], run: str, instead: str) -> Mapping[str, Any]:
    """Return the settings of a run's data; a checkpoint that a script's trainer wrote has none."""
    data: Mapping[str, Any] = checkpoint["dprec"]["data"]
    if not data["class_path"]:
        raise UserError(f"{run} does not say its data, because a script's trainer wrote it: {instead}")
    return data


def _say_if_unfinished(ours: Mapping[str, Any], run: Path) -> None:
    step, planned = ours.get("step"), ours["identity"].get("steps")
    if isinstance(step, int) and isinstance(planned, int) and step < planned:
        goes_on = RunFolder(run).config.is_file() and not RunFolder(run).metrics.exists()
        how = f": continue it with python -m dprec.fit --resume {RunFolder(run).quoted}" if goes_on else ""
        say(f"{run} is at step {step:,} of {planned:,}, so it is not trained to the end{how}")
