"""What `python -m dprec.bench NAME` measures on this machine; the studies behind the documents are in docs/studies.

The module of a benchmark gives `run(quick, say, **options)`, an iterator of rows, and `table(rows)`; perhaps
`picture(rows, file)`, and `OPTIONS`, the further options of its command line. To add one, write such a module, and
enter it in `BENCHMARKS`, and in `dprec/bench.py`.
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
