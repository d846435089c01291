"""A run as files that other programs load: scores as a function of histories, items, what goes in and comes out."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, export

import dprec
from dprec.cli.command import finite
from dprec.data.logs.context import ContextColumns
from dprec.errors import UserError, refuse_missing
from dprec.models import Recommender
from dprec.serving.served import Served
from dprec.serving.top_k import Scores

IDS, INTERFACE = "items.json", "interface.json"
ONE_FILE = 2**30  # bytes of weights that still go into the .onnx file itself, which may not have 2 GiB


def export_run(served: Served, kind: str, out: Path) -> Path:
    """Write a folder with the model, its items and its interface, whole or not at all; return the model's file."""
    if kind not in WRITERS:
        raise UserError(f"--format is {kind!r}: give one of {', '.join(WRITERS)}")
    if out.exists():
        raise UserError(f"--out {out} exists: give a folder that does not exist yet")
    name, packages, write = WRITERS[kind]
    refuse_missing(packages, f"--format {kind}", kind)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        lengths = write(served, part / name)
        _write_json(part / INTERFACE, {"format": kind, "file": name, **_interface(served, *lengths)})
        _write_json(part / IDS, [None, *served.items])
        part.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / name


def _onnx(served: Served, path: Path) -> tuple[int, int]:
    program = Program.of(served.model)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.exported.state_dict.values())
    torch.onnx.export(
        program.exported,
        f=path,
        input_names=program.inputs,
        output_names=["scores"],
        external_data=weights > ONE_FILE,
        dynamo=True,
        verbose=False,
    )
    return program.shortest, program.longest


def _torch(served: Served, path: Path) -> tuple[int, int]:
    program = Program.of(served.model)
    torch.export.save(program.exported, path)
    return program.shortest, program.longest


def _safetensors(served: Served, path: Path) -> tuple[int, int]:
    from safetensors.torch import save_file

    # Each tensor for itself, because the format has no tied ones.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in served.model.state_dict().items()}
    save_file(tensors, path, metadata={"class_path": served.facts["model"]["class_path"]})
    return 1, served.model.max_length


# Each format: the model's file, the packages that write it, and what writes it and says how long a history may be.
WRITERS: dict[str, tuple[str, tuple[str, ...], Callable[[Served, Path], tuple[int, int]]]] = {
    "onnx": ("model.onnx", ("onnx", "onnxscript"), _onnx),
    "torch": ("model.pt2", (), _torch),
    "safetensors": ("model.safetensors", ("safetensors",), _safetensors),
}


def _interface(served: Served, shortest: int, longest: int) -> dict[str, Any]:
    items, guarantee = served.model.items, served.facts["guarantee"]
    return {
        "made_by": f"dprec {dprec.__version__}",
        "model": served.facts["model"],
        "inputs": [
            {
                "name": "history",
                "type": "int64",
                "shape": ["users", "length"],
                "length": {"least": shortest, "most": longest},
                "is": "item numbers, the most recent ones, oldest first, then zeros",
            },
            *([] if served.reader.columns is None else [_context(served.reader.columns)]),
        ],
        "outputs": [
            {
                "name": "scores",
                "type": "float32",
                "shape": ["users", items],
                "is": "the score of each item, higher is better; -infinity for number 0, which is no item; "
                "for a history of zeros, how popular each item is",
            }
        ],
        "items": {"file": IDS, "is": f"the raw id of each number, 1 to {items - 1}; number 0 has none"},
        "guarantee": {key: guarantee.get(key) for key in ("guarantee", "epsilon", "delta")},
    }


def _context(columns: ContextColumns) -> dict[str, Any]:
    """The second input of a model that reads context, and how a value becomes a number."""
    told: list[dict[str, Any]] = []
    for name, kind in columns.columns.items():
        told.append({"name": name, "bounds": kind} if isinstance(kind, tuple) else {"name": name, "rows": kind})
    return {
        "name": "context",
        "type": "int64",
        "shape": ["users", "length", len(told)],
        "is": "a number for each event and column, 0 where a value is missing and behind the history's end",
        "columns": told,
        "with bounds": "1, and 1 more for each bound that is not above the value",
        "with rows": "1 + h mod rows, where h is the BLAKE2b digest of 4 bytes of the value's text in UTF-8, the first "
        "byte the lowest, and 1 in place of 0; the text is in Unicode's form NFC, without white space at its ends, and "
        "a whole number has no point",
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


EXAMPLE = 16  # events of the history that a model is exported with, if it takes as many


@dataclass(frozen=True)
class Program:
    """Exported scores, the names of what they take, and how long a history may be."""

    exported: ExportedProgram
    inputs: list[str]
    shortest: int
    longest: int

    @classmethod
    def of(cls, model: Recommender) -> Program:
        """For any number of users, and any length up to the model's.

        Where torch has to unroll a model, as a recurrent one, the length is the model's own, and others are padded.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a recurrent cell's list of weights, which exporting leaves as it is
            return cls._of(Scores(model), model.max_length)

    @classmethod
    def _of(cls, scores: Scores, longest: int) -> Program:
        users, inputs = Dim("users"), ["history", "context"][: 1 + reads_context(scores.model)]
        if longest > 2:
            length = Dim("length", min=1, max=longest)
            try:
                exported = _exported(scores, min(EXAMPLE, longest - 1), {0: users, 1: length})
                return cls(exported, inputs, 1, longest)
            except Exception:  # of many kinds: torch has found that it must know the length
                pass
        try:
            return cls(_exported(scores, longest, {0: users}), inputs, longest, longest)
        except Exception as error:
            reason = textwrap.shorten(str(error), 120, placeholder=" ...")
            name = type(scores.model).__name__
            raise UserError(
                f"torch.export cannot take {name} ({reason}): --format safetensors exports its weights"
            ) from None


def _exported(scores: Scores, length: int, free: dict[int, Any]) -> ExportedProgram:
    """For histories of such a length; `free` names the dimensions that may differ."""
    examples = [torch.ones(3, length, dtype=torch.long)]
    if reads_context(scores.model):
        columns = len(scores.model.context_vectors.before)
        examples.append(torch.ones(3, length, columns, dtype=torch.long))
    return export(scores, tuple(examples), dynamic_shapes=(free,) * len(examples))


def reads_context(model: Any) -> bool:
    return getattr(model, "context_vectors", None) is not None
