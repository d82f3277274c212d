"""One file per member, one row per file: files, tables and docs name the same members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from indexer.adapters import ADAPTERS
from policies import POLICIES
from router.cli import COMMANDS
from router.discovery import SOURCES
from router.engines import ENGINES
from router.hand_over import PROTOCOLS
from tests.tidy.sources import ROOT, nothing

# folder -> (files of the rows of its table, other files of the folder)
PLUG_POINTS: dict[str, tuple[set[str], set[str]]] = {
    "policies": (
        {policy.__module__.removeprefix("policies.") for policy in POLICIES.values()},
        {"base", "costs", "engine_time", "limits", "parameters", "spelling", "types"},
    ),
    "indexer/adapters": (set(ADAPTERS), {"errors", "reading"}),
    "router/engines": (
        set(ENGINES),
        {
            "bootstrap",
            "control",
            "describe",
            "facts",
            "gauges",
            "http",
            "limits",
            "metrics_text",
            "releases",
            "sessions",
            "tokenize",
        },
    ),
    "router/hand_over": (set(PROTOCOLS), {"base", "one_token", "refusals", "whole"}),
    "router/discovery": (set(SOURCES), {"base", "templates"}),
}


@pytest.mark.parametrize("folder", PLUG_POINTS)
def test_every_file_of_a_plug_point_is_in_its_table(folder: str) -> None:
    members, helpers = PLUG_POINTS[folder]
    files = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert files == members | helpers


def test_every_policy_is_documented() -> None:
    nothing(not_in(ROOT / "docs/policies.md", (f"`{name}`" for name in POLICIES)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_leads_somewhere(name: str) -> None:
    module, _, function = COMMANDS[name].target.partition(":")
    assert callable(getattr(import_module(module), function))


def test_every_subcommand_is_documented() -> None:
    nothing(not_in(ROOT / "docs/index.md", (f"`kvgate {name}`" for name in COMMANDS)))


def not_in(page: Path, words: Iterable[str]) -> Iterator[str]:
    text = page.read_text()
    return (f"{word} is not in {page.name}" for word in words if word not in text)
