"""One file per member, one row per file: files, tables and docs name the same members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from indexer.adapters import ADAPTERS
from policies import POLICIES
from router.cli import COMMANDS
from router.discovery import SOURCES
from router.engines import ENGINES
from tests.tidy.sources import ROOT, nothing

# folder -> (its table, files of the folder that are no members)
PLUG_POINTS: dict[str, tuple[Mapping[str, object], set[str]]] = {
    "policies": (POLICIES, {"types", "base", "costs", "parameters"}),
    "indexer/adapters": (ADAPTERS, {"errors"}),
    "router/engines": (ENGINES, set()),
    "router/discovery": (SOURCES, set()),
}


@pytest.mark.parametrize("folder", PLUG_POINTS)
def test_every_file_of_a_plug_point_is_in_its_table(folder: str) -> None:
    table, helpers = PLUG_POINTS[folder]
    files = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert files == {file_of(member) for member in table.values()} | helpers


def test_every_policy_is_documented() -> None:
    nothing(not_in(ROOT / "docs/policies.md", (f"`{name}`" for name in POLICIES)))


def test_every_subcommand_is_documented() -> None:
    nothing(not_in(ROOT / "docs/index.md", (f"`kvgate {name}`" for name in COMMANDS)))


def file_of(member: object) -> str:
    """The file in which a class, function or module that stands in a table was written."""
    name: str = member.__name__ if isinstance(member, ModuleType) else member.__module__
    return name.rpartition(".")[2]


def not_in(page: Path, words: Iterable[str]) -> Iterator[str]:
    text = page.read_text()
    return (f"{word} is not in {page.name}" for word in words if word not in text)
