"""The contract of a hand-over protocol: what a request's two legs say, made from what the client said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from policies.types import Worker
from router.wire.endpoints import Endpoint
from router.worker_address import WorkerAddress


@dataclass(slots=True, kw_only=True)
class HandOver:
    """A request on its way to two workers.

    `members`: those of its body. `request_id`: unique among all requests of all gateways, in which the
    client's own may be found. `number`: drawn anew from 0 to 2^63 - 1, for joining the legs. `engine_id`: of
    the prefill worker's engine, where the protocol has one asked for.
    """

    body: bytes
    members: Mapping[str, msgspec.Raw]
    endpoint: Endpoint
    request_id: bytes
    prefill: Worker
    decode: Worker
    number: int
    engine_id: str = ""


@dataclass(slots=True)
class Leg:
    """What one worker is sent. `request_id`: its `x-request-id`."""

    body: bytes
    request_id: bytes


class IncompleteAnswer(Exception):
    """The prefill worker's answer lacks what the decode worker needs: sent all the same it could hang or kill
    that engine. The text says what."""


class HandOverProtocol(Protocol):
    """One row of `PROTOCOLS`. An instance serves all requests: what belongs to one is in its HandOver."""

    is_concurrent: bool
    """Both legs leave at once; otherwise the decode leg waits for the whole answer of the prefill leg."""

    asks_engine_id: bool
    """HandOver.engine_id is asked of the prefill worker's bootstrap server before."""

    takes_batches: bool
    """Several prompts in one request, or several answers to one, can be handed over together."""

    def prefill_leg(self, hand_over: HandOver) -> Leg: ...

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        """`answer`: the prefill worker's; empty for concurrent legs. Raises IncompleteAnswer."""
        ...


def transfer_host(worker: Worker) -> str:
    """Where the other side reaches a worker's bootstrap server or KV socket; IPv6 in brackets."""
    transfer = worker.transfer
    if transfer is None or not transfer.host:
        return WorkerAddress.parse(worker.url).bracketed_host
    host = transfer.host
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
