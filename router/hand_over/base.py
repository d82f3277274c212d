"""The contract of a hand-over protocol: what a request's two legs say, made from what the client said."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from policies.types import Worker
from router.wire.endpoints import Endpoint
from router.wire.openai import ParsedBody


@dataclass(slots=True, kw_only=True)
class HandOver:
    """A request on its way to two workers.

    `request_id`: unique among all requests of all gateways, in which the client's own may be found.
    `engine_id`: of the prefill worker's engine, where the protocol has one asked for. Chance is for numbers
    that join the legs; they must not repeat among requests in flight.
    """

    body: bytes
    parsed: ParsedBody
    endpoint: Endpoint
    request_id: bytes
    prefill: Worker
    decode: Worker
    rng: random.Random
    engine_id: str | None = None


@dataclass(slots=True)
class Leg:
    """What one worker is sent. `lines`: header lines, `x-request-id` among them, each with its end."""

    body: bytes
    lines: bytes


class IncompleteAnswer(Exception):
    """The prefill worker's answer lacks what the decode worker needs: sent all the same it could hang or kill
    that engine. The text says what."""


class HandOverProtocol(Protocol):
    """One row of `PROTOCOLS`. An instance serves all requests: what belongs to one is in its HandOver."""

    is_concurrent: bool
    """Both legs leave at once; otherwise the decode leg waits for the whole answer of the prefill leg."""

    asks_engine_id: bool
    """HandOver.engine_id is to be asked of the prefill worker's bootstrap server before."""

    def prefill_leg(self, hand_over: HandOver) -> Leg: ...

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        """`answer`: the prefill worker's; empty for concurrent legs. Raises IncompleteAnswer."""
        ...
