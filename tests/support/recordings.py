"""The recorded vLLM streams under tests/fixtures, read."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Request:
    """A request that the engine answered with its usage. `prompts` are token ids; two for a batch."""

    id: str
    label: str
    prompts: list[list[int]]
    model: str
    cache_salt: str
    cached_tokens: int
    event_seqs: list[int]
    rank: int


@dataclass(frozen=True)
class Recording:
    """`payloads[rank][seq]` are the messages of each stream."""

    name: str
    payloads: dict[int, dict[int, bytes]]
    requests: list[Request]

    def moments(self) -> Iterator[tuple[list[Request], list[tuple[int, int]]]]:
        """In order: what was asked at once, and the new messages (rank, seq) that followed."""
        seen: set[tuple[int, int]] = set()
        for _, rows in groupby(_rows(self.name, "requests.jsonl"), key=itemgetter("label")):
            asked, new = [], set()
            for row in rows:
                asked += [request] if (request := _request(row)) else []
                new |= {(row.get("rank", 0), seq) for seq in row.get("event_seqs", ())} - seen
            seen |= new
            yield asked, sorted(new)
        assert len(seen) == sum(map(len, self.payloads.values())), "every message belongs to a request"


def recording(name: str) -> Recording:
    """Read the recording in `tests/fixtures/<name>`."""
    payloads: dict[int, dict[int, bytes]] = {}
    rows = _rows(name, "events.jsonl")
    first_port = min(row.get("port", 0) for row in rows)
    for row in rows:
        stream = payloads.setdefault(row.get("port", 0) - first_port, {})
        stream[row["seq"]] = base64.b64decode(row["payload_b64"])
    requests = [request for row in _rows(name, "requests.jsonl") if (request := _request(row))]
    return Recording(name, payloads, requests)


def _rows(name: str, file: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (FIXTURES / name / file).read_bytes().splitlines()]


def _request(row: dict[str, Any]) -> Request | None:
    if "cached_tokens" not in row:
        return None
    tokens = row["tokenize_prompt_token_ids"]
    return Request(
        id=row["id"],
        label=row["label"],
        prompts=tokens if isinstance(tokens[0], list) else [tokens],
        model=row["body"]["model"],
        cache_salt=row["body"].get("cache_salt", ""),
        cached_tokens=row["cached_tokens"],
        event_seqs=row.get("event_seqs", []),
        rank=row.get("rank", 0),
    )
