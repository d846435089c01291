"""Encoders that others trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprec.errors import UserError, first_line, refuse_missing, refuse_no_folder


def pretrained(kind: str, name: str, instead: str = "", **options: Any) -> Any:
    """Return an encoder from a folder or the hub, as a class of transformers reads it.

    Code that lies beside weights is not run, nor weights that are pickles. `instead` says what else the setting takes.
    """
    refuse_no_folder(name, "model.encoder")
    if Path(name, "adapter_config.json").is_file():
        raise UserError(
            f"model.encoder {name} holds adapters of peft: save the encoder with them merged, as merge_and_unload of "
            "peft returns it"
        )
    refuse_missing(["transformers"], "model.encoder", "text")
    import transformers

    where = {"local_files_only": True} if Path(name).is_dir() else {}
    try:
        return getattr(transformers, kind).from_pretrained(
            name, use_safetensors=True, trust_remote_code=False, **where, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"model.encoder {name} cannot be loaded ({first_line(error)[:120]}): give a folder that save_pretrained "
            f"wrote{instead}"
        ) from None
