"""What is measured, by name: a module here gives `run(quick, say)`, `table(rows)` and `picture(rows)`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dprec.errors import UserError

BENCHMARKS = {"phantom": "dprec.benchmarks.phantom", "recurrent": "dprec.benchmarks.recurrent"}


def find(name: str) -> ModuleType:
    """Return a benchmark's module, imported only now."""
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; there is {', '.join(sorted(BENCHMARKS))}")
    return import_module(BENCHMARKS[name])
