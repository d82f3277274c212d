"""Where a model's tokenizer and chat template lie on this machine: a directory, a file, the local hub cache.

Files are found and the small ones read; nothing is ever downloaded. What is made of them is the business of
`router.tokens.local`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

INSTALL = "pip install 'kvgate[tokenizers]'"

_PACKAGES = ("tokenizers", "jinja2")


class NoTokenizer(Exception):
    """There is none where one was named, or it cannot be read; the text says why and what to do."""


class NothingThere(NoTokenizer):
    """The place does not exist."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What belongs to one tokenizer. `templates` has the chat template under "default", and another for
    requests with tools under "tool_use" where there is one."""

    tokenizer: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    """tokenizer_config.json over special_tokens_map.json; empty where there are none."""
    templates: Mapping[str, str] = field(default_factory=dict)


def missing_packages() -> list[str]:
    """Those of the extra that are not installed."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def need_packages() -> None:
    """Raises NoTokenizer where the extra is not installed."""
    if missing := missing_packages():
        raise NoTokenizer(f"tokens are made here by {' and '.join(missing)}, not installed: {INSTALL}")


def split_named(value: str) -> tuple[str, str]:
    """(model, place) of "MODEL=PLACE"; the model is "" where none is named."""
    model, equals, place = value.partition("=")
    return (model, place) if equals else ("", value)


def find_tokenizer(place: str, environ: Mapping[str, str] | None = None) -> TokenizerFiles:
    """The files at `place`: a directory, a tokenizer.json, or the name of a model in the local hub cache.

    Raises NoTokenizer.
    """
    path = _path(place)
    if os.path.isfile(path):  # unlike pathlib's, False for names that no file can have
        return _files_of(path)
    if os.path.isdir(path):
        return _files_in(path, str(path))
    if os.path.lexists(path):
        raise NoTokenizer(f"{place} is {_kind_of(path)}: name a directory, a tokenizer.json, or a model")
    if not _HUB_NAME.fullmatch(place):
        raise NothingThere(f"{place}: no such file or directory")
    return _files_in(_snapshot(place, os.environ if environ is None else environ), f"the snapshot of {place}")


class _Tokenizer(msgspec.Struct):
    """What every tokenizer.json has; the rest is skipped."""

    model: dict[str, msgspec.Raw]


def check_tokenizer(path: Path) -> None:
    """A first look at what was found; whether it works shows when it is loaded. Raises NoTokenizer."""
    try:
        msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except OSError as error:
        raise NoTokenizer(f"can't read {path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoTokenizer(f"{path} is no tokenizer: {error}") from None


def read_template(path: str) -> str:
    """A chat template from its file. Raises NoTokenizer."""
    return _text(_path(path))


def _files_in(directory: Path, described: str) -> TokenizerFiles:
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise NoTokenizer(f"{described} holds no tokenizer.json, the one format that is read here")
    return _files_of(tokenizer)


def _files_of(tokenizer: Path) -> TokenizerFiles:
    named = _object(tokenizer.with_name("special_tokens_map.json"))
    config = named | _object(tokenizer.with_name("tokenizer_config.json"))
    return TokenizerFiles(tokenizer, config, _templates(tokenizer.parent, config))


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """A file of its own counts before the configuration's entry, as for transformers."""
    if (own := directory / "chat_template.jinja").is_file():
        return {"default": _text(own)}
    found = config.get("chat_template") or _object(directory / "chat_template.json").get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    named = found if isinstance(found, list) else ()
    return {
        entry["name"]: entry["template"]
        for entry in named
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


# The hub cache

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def _snapshot(name: str, environ: Mapping[str, str]) -> Path:
    """The directory of a model's files at the revision that `main` was when they were downloaded."""
    cache = _cache_directory(environ)
    model = cache / ("models--" + name.replace("/", "--"))
    if not os.path.isdir(model):
        raise NothingThere(
            f"{name}: no such file or directory, and not in the hub cache ({cache}); nothing is downloaded "
            f"here: put it there with hf download {name}"
        )
    snapshots = model / "snapshots"
    reference = model / "refs" / "main"
    if reference.is_file():
        return snapshots / _text(reference).strip()
    revisions = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
    if len(revisions) != 1:
        raise NoTokenizer(f"{model} has no refs/main and {len(revisions)} snapshots: name a directory")
    return revisions[0]


def _cache_directory(environ: Mapping[str, str]) -> Path:
    """By the variables that the hub's own client reads."""
    if named := environ.get("HF_HUB_CACHE"):
        return _path(named)
    if home := environ.get("HF_HOME"):
        return _path(home) / "hub"
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _path(caches) / "huggingface" / "hub"


# Reading


def _path(text: str) -> Path:
    """With the home directory for ~, where there is one."""
    return Path(os.path.expanduser(text))


def _kind_of(path: Path) -> str:
    """In words, what is at a place where no file or directory is."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"a link that leads nowhere ({error.strerror or error})"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading might never end
            raise NoTokenizer(f"can't read {path}: it is {_kind_of(path)}, not a file")
        return path.read_text("utf-8")
    except OSError as error:
        raise NoTokenizer(f"can't read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise NoTokenizer(f"can't read {path}: not UTF-8 text") from None
    except ValueError as error:  # a name that no file can have
        raise NoTokenizer(f"can't read {path}: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_text(path), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoTokenizer(f"{path} is no JSON object: {error}") from None
