"""Imports point one way, as the table of folders in docs/architecture.md says.

No two folders import each other, by whatever way round, and no two files, not even for types.

Models know the private sums that they ask for, and nothing else of privacy; data and metrics know none of these.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dprec"
SHARED = {"dprec.errors", "dprec.contract", "dprec.notices", "dprec.lightning"}  # all else at the top is a command


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "dprec" else set()
    return found


def of_folder(folder: Path) -> set[str]:
    return set[str]().union(*(imported(file) for file in folder.rglob("*.py")))


def test_kernels_know_nothing_of_the_package_and_a_private_step_nothing_of_lightning() -> None:
    assert not [name for name in of_folder(ROOT / "kernels/dprec_kernels") if name.split(".")[0] == "dprec"]
    known = {".".join(name.split(".")[:2]) for name in of_folder(PACKAGE / "privacy")}
    assert not known & {"pytorch_lightning", "torchmetrics", "dprec.lightning"}
    assert not [name for name in of_folder(PACKAGE / "cli") if name.startswith("dprec.run")]


def circles(arrows: dict[str, set[str]]) -> set[str]:
    """Return what is left once nothing stands alone at the bottom or at the top."""
    left = set(arrows).union(*arrows.values())
    before = None
    while left != before:
        before = left
        left = {one for one in left if arrows.get(one, set()) & left}
        left &= {other for one in left for other in arrows[one]}
    return left


def inside() -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports, types included."""
    files = {str(file.relative_to(ROOT).with_suffix("")).replace(os.sep, "."): file for file in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): file for name, file in files.items()}
    found = {}
    for name, file in modules.items():
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        named = {(f"{node.module}.{alias.name}", node.module) for node in nodes for alias in node.names}
        found[name] = {part if part in modules else whole for part, whole in named} & set(modules) - {name}
    return found


def folder_of(module: str) -> str:
    return module if (ROOT / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def package_of(module: str) -> str:
    """The folder right under the package that a module is in; nothing for those that are in none."""
    first = ".".join(module.split(".")[:2])
    return first if (ROOT / first.replace(".", "/")).is_dir() and first != "dprec" else ""


def test_no_two_folders_import_each_other() -> None:
    """The commands at the top may import anything, and nothing but errors is theirs."""
    arrows: dict[str, set[str]] = {}
    for name, modules in inside().items():
        own = folder_of(name)
        if own != "dprec":
            arrows.setdefault(own, set()).update({folder_of(module) for module in modules} - {own, "dprec"})
    assert not circles(arrows)


def test_no_two_packages_import_each_other() -> None:
    """Folders right under the package, with all that is in them."""
    arrows: dict[str, set[str]] = {}
    for name, modules in inside().items():
        own = package_of(name)
        arrows.setdefault(own, set()).update({package_of(module) for module in modules} - {own, ""})
    arrows.pop("", None)
    assert not circles(arrows)


def test_no_two_files_import_each_other() -> None:
    assert not circles(inside())


def test_the_table_of_folders_says_what_each_imports() -> None:
    rows = re.findall(r"^\| `dprec/(\w+)` \| .* \| (.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    told = {
        folder: set() if knows == "nothing" else set(knows.split(", ")) for folder, knows in rows if knows[:3] != "all"
    }
    assert len(told) > 12
    for folder, knows in told.items():
        found = of_folder(PACKAGE / folder)
        first = {name.split(".")[1] for name in found if name.startswith("dprec.")} - {folder}
        folders = {name for name in first if (PACKAGE / name).is_dir()}
        assert {f"dprec.{name}" for name in first - folders if (PACKAGE / f"{name}.py").exists()} <= SHARED, folder
        assert knows == folders | {"kernels" for name in found if name.startswith("dprec_kernels")}, folder
