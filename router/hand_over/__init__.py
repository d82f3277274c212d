"""How a prompt that one engine has computed reaches the engine that decodes it: one file per protocol.

Pure: bodies and header values in, bodies and header values out. Who is asked, and when, is `router.legs`.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.hand_over.base import HandOver, HandOverProtocol, IncompleteAnswer, Leg
from router.hand_over.mooncake import Mooncake
from router.hand_over.nixl import Nixl
from router.hand_over.p2p import P2p
from router.hand_over.refusals import refuse_gateway_fields
from router.hand_over.sglang import SGLang
from router.hand_over.store import Store
from router.hand_over.whole import num_prompts, why_whole

__all__ = [
    "PROTOCOLS",
    "HandOver",
    "HandOverProtocol",
    "IncompleteAnswer",
    "Leg",
    "num_prompts",
    "refuse_gateway_fields",
    "why_whole",
]

PROTOCOLS: Mapping[str, HandOverProtocol] = {
    "nixl": Nixl(),
    "mooncake": Mooncake(),
    "p2p": P2p(),
    "store": Store(),
    "sglang": SGLang(),
}
"""By the name in `Transfer.protocol`; `tests/contract/test_hand_over.py` runs over every row."""
