"""Every file says first what lives there."""

from __future__ import annotations

import ast

from tests.tidy.sources import modules, nothing, package_modules


def test_every_module_begins_with_a_docstring() -> None:
    """A unit test mirrors a module, whose docstring speaks for both."""
    files = (*package_modules(), *modules("tests"))
    nothing(
        module.name
        for module in files
        if not module.name.startswith("tests/unit/") and not ast.get_docstring(module.tree)
    )
