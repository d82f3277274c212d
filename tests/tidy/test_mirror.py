"""Every pure module is met by a test of its own: one that imports it, not one that merely passes through."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from tests.tidy.sources import ROOT, Module, modules, nothing, package_modules


def test_every_pure_module_is_tested_directly() -> None:
    tested = {
        name
        for module in modules("tests/unit", "tests/property", "tests/contract", "tests/support")
        for name in imported(module)
    }
    nothing(module.name for module in pure_modules() if dotted(module) not in tested)


def pure_modules() -> Iterator[Module]:
    """As import-linter's contract lists them, without packages' own files and tables of bounds."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = next(c["source_modules"] for c in contracts if "pure rooms" in c["name"])
    for module in package_modules():
        name = dotted(module)
        is_pure = any(name == room or name.startswith(room + ".") for room in rooms)
        if is_pure and module.path.stem not in ("__init__", "limits"):
            yield module


def dotted(module: Module) -> str:
    return module.name.removesuffix(".py").replace("/", ".")


def imported(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
