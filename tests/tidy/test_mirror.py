"""Every pure module has a test of its own: a file of its name in the mirror, or one that imports it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import ROOT, Module, modules, nothing, package_modules


def test_every_pure_module_is_tested_directly() -> None:
    tested = {
        name
        for module in modules("tests/unit", "tests/property", "tests/contract", "tests/support")
        for name in imported(module)
    }
    nothing(m.name for m in pure_modules() if not mirror(m).exists() and dotted(m) not in tested)


def pure_modules() -> Iterator[Module]:
    """As import-linter's contract lists them, without packages' own files and tables of bounds."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = next(c["source_modules"] for c in contracts if "pure rooms" in c["name"])
    for module in package_modules():
        name = dotted(module)
        is_pure = any(name == room or name.startswith(room + ".") for room in rooms)
        if is_pure and module.path.stem not in ("__init__", "limits"):
            yield module


def mirror(module: Module) -> Path:
    directory = ROOT / "tests/unit" / module.path.relative_to(ROOT).parent
    return directory / f"test_{module.path.name}"


def dotted(module: Module) -> str:
    return module.name.removesuffix(".py").replace("/", ".")


def imported(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
