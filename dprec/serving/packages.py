"""Packages that only some of serving needs, which the package's extras bring."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from dprec.errors import UserError


def refuse_without(packages: Sequence[str], what: str, extra: str) -> None:
    """Refuse in one line what needs packages that are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'dprec[{extra}]'")
