"""What is measured, by name.

The module of a comparison gives `run(quick, say)`, `table(rows)` and `picture(rows, file)`. It may name further
arguments of `run` in `OPTIONS`: --NAME VALUE, or None. One of another kind gives `bench(line, console)`. `SWITCHES` are
those it has, where these are not --quick alone.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dprec.errors import UserError

BENCHMARKS = {
    "gpu": "dprec.benchmarks.gpu",
    "lazydp": "dprec.benchmarks.lazydp",
    "phantom": "dprec.benchmarks.phantom",
}


def find(name: str) -> ModuleType:
    """Return a benchmark's module, imported only now."""
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; there is {', '.join(sorted(BENCHMARKS))}")
    return import_module(BENCHMARKS[name])
