"""Per-user gradient rules, one file per kind of operation. A new one is one new file: all files here are imported.

The decorator `dprec.gradients.uses.registry.rule` says what a rule is.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

for _file in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
