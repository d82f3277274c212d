"""vLLM's P2pNcclConnector: the request id spells both KV addresses, and nothing else joins the legs.

From the sources of vLLM 0.9.2 to 0.22.1, the releases that have it; not run.
"""

from __future__ import annotations

from policies.types import Worker
from router.hand_over.base import HandOver, Leg, transfer_host
from router.hand_over.one_token import one_token_body


class P2p:
    """See HandOverProtocol."""

    is_concurrent = False
    asks_engine_id = False
    takes_batches = False

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        body = one_token_body(hand_over.body, hand_over.members, hand_over.endpoint, {})
        return Leg(body, _request_id(hand_over))

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        return Leg(hand_over.body, _request_id(hand_over))


def _request_id(hand_over: HandOver) -> bytes:
    """Engines find the addresses by their underscores and take what stands before the *last* colon and digits
    as the decode side's host: the rest of the id may hold neither."""
    prefill, decode = _kv_address(hand_over.prefill), _kv_address(hand_over.decode)
    unique = hand_over.request_id.replace(b"___", b"-").replace(b":", b"-")
    return b"___prefill_addr_%b___decode_addr_%b_%b" % (prefill, decode, unique)


def _kv_address(worker: Worker) -> bytes:
    port = worker.transfer.port if worker.transfer is not None else None
    assert port is not None, f"{worker.id} has no KV address"
    return f"{transfer_host(worker)}:{port}".encode()
