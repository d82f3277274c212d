"""Every bound gives its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.sources import Module, nothing, package_modules


def test_every_limit_has_a_reason() -> None:
    limits = [module for module in package_modules() if module.path.name == "limits.py"]
    assert limits
    nothing(f"{module.name}: {name}" for module in limits for name in without_reason(module))


def without_reason(module: Module) -> Iterator[str]:
    """Constants without a docstring below; constants that belong together may share one."""
    waiting: list[ast.stmt] = []
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            if waiting and node.lineno > (waiting[-1].end_lineno or 0) + 1:
                yield from map(ast.unparse, waiting)
                waiting = []
            waiting.append(node)
        elif isinstance(node, ast.Expr):
            waiting = []
    yield from map(ast.unparse, waiting)
