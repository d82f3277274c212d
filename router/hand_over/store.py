"""Connectors that look KV up by its content in a shared store (vLLM's ExampleConnector, LMCache's and
Mooncake's stores): nothing joins the legs, a prefill is a request for one token.
"""

from __future__ import annotations

from router.hand_over.base import HandOver, Leg
from router.hand_over.one_token import one_token_body


class Store:
    """See HandOverProtocol."""

    is_concurrent = False
    asks_engine_id = False
    takes_batches = True

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        body = one_token_body(hand_over.body, hand_over.members, hand_over.endpoint, {})
        return Leg(body, hand_over.request_id)

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        return Leg(hand_over.body, hand_over.request_id)
