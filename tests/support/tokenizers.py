"""Tokenizers for tests: a tiny one that is part of the project, and real ones where they lie."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from router.tokens.local.encoder import Encoder
from router.tokens.local.loading import load_encoder
from router.tokens.local.segments import SegmentCache
from tests.support.data import data_path

FIXTURES = Path(__file__).parent.parent / "fixtures"

TINY = FIXTURES.parent / "vllm" / "tiny-llama"
"""The tokenizer and chat template of the model that the recordings are of."""

REAL = ("qwen3", "deepseek-v3.1", "gpt-oss", "tinyllama-1.1")
"""Below `tokenizers` in KVGATE_DATA."""


def rows(name: str) -> list[dict[str, Any]]:
    """A fixture: the items of a JSON list, or the lines of a file of JSON lines."""
    raw = (FIXTURES / name).read_bytes()
    if name.endswith(".jsonl"):
        return [msgspec.json.decode(line) for line in raw.splitlines()]
    return msgspec.json.decode(raw)


def raw_tokenizer(name: str) -> tuple[bytes, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json of "tiny" or one of REAL; skips where it is not at hand."""
    if name == "tiny":
        return (TINY / "tokenizer.json").read_bytes(), _config(TINY)
    folder = data_path(f"tokenizers/{name}")
    return gzip.decompress((folder / "tokenizer.json.gz").read_bytes()), _config(folder)


@cache
def encoder(name: str) -> Encoder:
    """One of REAL or "tiny", with a cache of its own, loaded once for all tests; skips as above."""
    return load_encoder(*raw_tokenizer(name), SegmentCache())


def _config(folder: Path) -> dict[str, Any]:
    return msgspec.json.decode((folder / "tokenizer_config.json").read_bytes())
