"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

from tests.tidy.sources import Function, modules, nothing, package_modules

MODULE_LINES = 400
TEST_MODULE_LINES = 600  # a list of cases is easier to read in one place
FUNCTION_LINES = 60


def test_modules_are_small() -> None:
    nothing(
        f"{module.name}: {module.num_lines} lines"
        for files, limit in ((package_modules(), MODULE_LINES), (modules("tests"), TEST_MODULE_LINES))
        for module in files
        if module.num_lines > limit
    )


def test_functions_are_small() -> None:
    nothing(
        f"{module.name}:{function.lineno}: {function.name} has {size} lines"
        for module in (*package_modules(), *modules("tests"))
        for function in module.functions()
        if (size := num_lines(function)) > FUNCTION_LINES
    )


def num_lines(function: Function) -> int:
    """Signature and body, without the docstring."""
    assert function.end_lineno is not None
    size = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        size -= first.end_lineno - first.lineno + 1
    return size
