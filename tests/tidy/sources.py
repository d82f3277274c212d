"""The files that the tidy tests look at, parsed once."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("indexer", "policies", "router", "loadgen")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A Python file; `name` is its path from the root of the repository, as messages show it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @property
    def num_lines(self) -> int:
        return self.text.count("\n")

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


@cache
def modules(*directories: str) -> tuple[Module, ...]:
    """The Python files below these directories of the repository, in order."""
    paths = [path for directory in directories for path in sorted((ROOT / directory).rglob("*.py"))]
    return tuple(Module(path) for path in paths)


def nothing(found: Iterable[str]) -> None:
    """Fail with one line for each thing found."""
    lines = list(found)
    assert not lines, "\n" + "\n".join(lines)


def package_modules() -> tuple[Module, ...]:
    return modules(*PACKAGES)


@cache
def text_files() -> tuple[Path, ...]:
    """Every text file of the repository that people write: what git knows or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listing.stdout.decode().split("\0")[:-1] if listing.returncode == 0 else _files_without_git()
    return tuple(path for name in names if (path := ROOT / name).is_file() and _is_written_by_people(path))


def _files_without_git() -> list[str]:
    """A source archive has no .git; what tools left there lies in dot directories."""
    relative = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [path.as_posix() for path in relative if not any(part.startswith(".venv") for part in path.parts)]


def _is_written_by_people(path: Path) -> bool:
    if "fixtures" in path.parts or path.name.startswith("constraints") or path.name == "LICENSE":
        return False
    return b"\0" not in path.read_bytes()[:4096]
