"""Imports point one way: kernels <- privacy <- sparsity <- models <- commands; data and metrics know none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ["dprec_kernels", "dprec.privacy", "dprec.sparsity", "dprec.models"]
FORBIDDEN = {  # folder: what it may not import; a folder that does not exist yet is bound all the same
    "kernels/dprec_kernels": ["dprec"],
    "dprec/privacy": ["dprec.sparsity", "dprec.models", "dprec.data", "dprec.metrics", "dprec.*"],
    "dprec/sparsity": ["dprec.models", "dprec.data", "dprec.metrics", "dprec.*"],
    "dprec/convex": ["dprec.sparsity", "dprec.models", "dprec.data", "dprec.metrics", "dprec.benchmarks", "dprec.cli"],
    "dprec/cli": ["dprec.run"],
    "dprec/models": ["dprec.*"],
    "dprec/data": [*LAYERS, "dprec.metrics", "dprec.*"],
    "dprec/metrics": [*LAYERS, "dprec.data", "dprec.*"],
}
# What the folders may use of the top level: everything else there is a command.
SHARED = {"dprec.errors"}
PACKAGES = {"privacy", "sparsity", "models", "data", "metrics"}


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "dprec" else set()
    return found


def forbidden(module: str, rules: list[str]) -> bool:
    for rule in rules:
        if rule == "dprec.*":
            parts = module.split(".")
            if (
                parts[0] == "dprec"
                and len(parts) > 1
                and parts[1] not in PACKAGES
                and ".".join(parts[:2]) not in SHARED
            ):
                return True
        elif module == rule or module.startswith(rule + "."):
            return True
    return False


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nothing_below_imports_what_is_above(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in (ROOT / folder).rglob("*.py")
        for module in imported(file)
        if forbidden(module, FORBIDDEN[folder])
    ]
    assert not wrong
