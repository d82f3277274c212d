"""SGLang: both servers get the same body at once, with the place of the prefill server's bootstrap server and
a room in which the two meet. From the sources of 0.5.23; not run.
"""

from __future__ import annotations

import msgspec

from router.hand_over.base import HandOver, Leg, transfer_host
from router.hand_over.whole import num_prompts
from router.wire.splice import with_members

BOOTSTRAP_PORT = 8998
"""--disaggregation-bootstrap-port's default."""

ROOMS = 1 << 63
"""Rooms are signed 64-bit integers in the servers."""


class SGLang:
    """See HandOverProtocol."""

    is_concurrent = True
    asks_engine_id = False
    takes_batches = True

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        return self.decode_leg(hand_over, b"")

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        transfer = hand_over.prefill.transfer
        port = (transfer.port if transfer is not None else None) or BOOTSTRAP_PORT
        place: dict[str, object] = {
            "bootstrap_host": transfer_host(hand_over.prefill),
            "bootstrap_port": port,
            "bootstrap_room": _room(hand_over, 0),
        }
        if (count := num_prompts(hand_over.members, hand_over.endpoint)) is not None:
            place = {name: [value] * count for name, value in place.items()}
            place["bootstrap_room"] = [_room(hand_over, i) for i in range(count)]
        members = {name: msgspec.json.encode(value) for name, value in place.items()}
        return Leg(with_members(hand_over.body, members), hand_over.request_id)


def _room(hand_over: HandOver, index: int) -> int:
    """One for each prompt. Of several ranks the prefill server takes the one that remains when the room is
    divided by their number, and the decode server counts on that. Where the rank is the server's choice, any
    room will do."""
    transfer, rank = hand_over.prefill.transfer, hand_over.prefill.dp_rank
    if transfer is None or rank is None:
        return (hand_over.number + index) % ROOMS
    num_ranks = transfer.num_ranks
    room = hand_over.number - hand_over.number % num_ranks + index * num_ranks
    return (room + rank) % (ROOMS // num_ranks * num_ranks)
