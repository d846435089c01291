"""Exports a run to files for other programs: scores of histories or probabilities of clicks, and their interface."""

from __future__ import annotations

import os
import shutil
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from dprec.data.draws.batch import ClickBatch
from dprec.errors import UserError, refuse_missing
from dprec.run.saved.folder import write_json
from dprec.serving.interface import IDS, interface_of
from dprec.serving.predictions import PROBABILITY, ClickRun, TextRun
from dprec.serving.served import Served
from dprec.serving.top_k import Scores

INTERFACE = "interface.json"
ONE_FILE = 2**30  # bytes of weights that still go into the .onnx file itself, which may not have 2 GiB
EXAMPLE = 16  # events of the history that a model is exported with, if it takes as many

Exportable = Served | ClickRun


def export_run(served: Exportable | TextRun, kind: str, out: Path) -> Path:
    """Write a folder with the model, its items and its interface, completely or not at all; return the model's file."""
    if isinstance(served, TextRun):
        raise UserError(
            "a model of texts reads what its tokenizer makes, which the formats of dprec export cannot hold: ask it by "
            "dprec predict or dprec serve"
        )
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
        write_json(part / INTERFACE, {"format": kind, "file": name, **interface_of(served, *lengths)})
        if isinstance(served, Served):
            write_json(part / IDS, [None, *served.items])
        part.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / name


def _onnx(served: Exportable, path: Path) -> tuple[int, int]:
    program = Program.of(served)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.exported.state_dict.values())
    torch.onnx.export(
        program.exported,
        f=path,
        input_names=program.inputs,
        output_names=[program.output],
        external_data=weights > ONE_FILE,
        dynamo=True,
        verbose=False,
    )
    return program.shortest, program.longest


def _torch(served: Exportable, path: Path) -> tuple[int, int]:
    program = Program.of(served)
    torch.export.save(program.exported, path)
    return program.shortest, program.longest


def _safetensors(served: Exportable, path: Path) -> tuple[int, int]:
    from safetensors.torch import save_file

    # Each tensor is written by itself, because the format has no tied ones.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in served.model.state_dict().items()}
    save_file(tensors, path, metadata={"class_path": served.facts["model"]["class_path"]})
    return 1, getattr(served.model, "max_length", 0)


# Each format: the model's file, the packages that write it, and the function that writes it and returns lengths.
WRITERS: dict[str, tuple[str, tuple[str, ...], Callable[[Exportable, Path], tuple[int, int]]]] = {
    "onnx": ("model.onnx", ("onnx", "onnxscript"), _onnx),
    "torch": ("model.pt2", (), _torch),
    "safetensors": ("model.safetensors", ("safetensors",), _safetensors),
}


@dataclass(frozen=True)
class Program:
    """An exported model, the names of its inputs and outputs, and the allowed lengths of histories."""

    exported: ExportedProgram
    inputs: list[str]
    output: str
    shortest: int = 0
    longest: int = 0

    @classmethod
    def of(cls, served: Exportable) -> Program:
        """Export a model for any number of records or users, and any length up to the model's.

        If torch has to unroll a model, such as a recurrent one, histories have the model's full length, padded.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a recurrent cell's list of weights, which exporting does not change
            try:
                return _of_clicks(served) if isinstance(served, ClickRun) else _of_scores(served)
            except Exception as error:
                reason = textwrap.shorten(str(error), 120, placeholder=" ...")
                name = type(served.model).__name__
                raise UserError(
                    f"torch.export cannot take {name} ({reason}): --format safetensors exports its weights"
                ) from None


def _of_scores(served: Served) -> Program:
    longest = served.model.max_length
    rest: list[tuple[int, ...]] = [()] if served.reader.columns is None else [(), (len(served.reader.columns.rows),)]

    def exported(length: int, free: dict[int, Any]) -> ExportedProgram:
        """Export for histories of this length; `free` names the dimensions that may vary."""
        examples = tuple(torch.ones(3, length, *more, dtype=torch.long) for more in rest)
        return export(Scores(served.model), examples, dynamic_shapes=(free,) * len(examples))

    users, inputs = Dim("users"), ["history", "context"][: len(rest)]
    if longest > 2:
        try:
            free = {0: users, 1: Dim("length", min=1, max=longest)}
            return Program(exported(min(EXAMPLE, longest - 1), free), inputs, "scores", 1, longest)
        except Exception:  # of many kinds: torch needs a fixed length
            pass
    return Program(exported(longest, {0: users}), inputs, "scores", longest, longest)


class Chances(nn.Module):
    """Computes the probability of a click (B,) for numbers (B, D) and ids of categories (B, F, P)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        chances: Tensor = self.model(ClickBatch(numbers, categories, clicked=numbers.sum(1)))  # `clicked` is not read
        return chances


def _of_clicks(run: ClickRun) -> Program:
    columns, records = run.columns, {0: Dim("records")}
    categories = torch.zeros(3, len(columns.categories), columns.bag, dtype=torch.long)
    examples = (torch.ones(3, len(columns.numbers)), categories)
    exported = export(Chances(run.model), examples, dynamic_shapes=(records, records))
    return Program(exported, ["numbers", "categories"], PROBABILITY)
