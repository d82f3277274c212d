"""Requests on their way to two workers, and what their legs say, for tests of hand-over protocols."""

from __future__ import annotations

import json  # noqa: TID251 - as engines read their bodies: of equal members the last counts
from typing import Any

from policies.types import Role, Transfer, Worker
from router.hand_over import PROTOCOLS, HandOver
from router.wire.endpoints import ENDPOINTS
from router.wire.splice import members_of
from tests.support.columns import make_worker

REQUEST_ID = b"call-1"

PARAMETERS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "engine",
    "remote_request_id": "cmpl-call-1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
"""Of a NIXL prefill worker."""


def make_hand_over(
    body: bytes | dict[str, Any], *, protocol: str = "nixl", path: str = "/v1/completions", **fields: Any
) -> HandOver:
    """`prefill`, `decode` and the other fields of a HandOver may be given."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    members = members_of(data)
    assert members is not None
    defaults: dict[str, Any] = {
        "request_id": REQUEST_ID,
        "prefill": make_prefill(protocol),
        "decode": make_worker("decode", role=Role.DECODE, transfer=Transfer(protocol=protocol, port=22001)),
        "number": 4711,
        "engine_id": "engine" if PROTOCOLS[protocol].asks_engine_id else "",
    }
    return HandOver(body=data, members=members, endpoint=ENDPOINTS[path], **(defaults | fields))


def make_prefill(
    protocol: str, *, version: str = "0.32.0", dp_rank: int | None = None, **transfer: Any
) -> Worker:
    return make_worker(
        "prefill",
        role=Role.PREFILL,
        version=version,
        dp_rank=dp_rank,
        transfer=Transfer(**({"protocol": protocol, "port": 21001} | transfer)),
    )


def make_answer(parameters: object = PARAMETERS, *, finish_reason: str | None = "length") -> bytes:
    """Of a prefill worker, with what each sequential protocol wants of it."""
    answer = {"id": "cmpl-1", "choices": [{"index": 0, "finish_reason": finish_reason}]}
    return json.dumps(answer | {"kv_transfer_params": parameters}).encode()


def read(body: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(body)
    return value
