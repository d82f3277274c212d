import re

import pytest

from router.hand_over import PROTOCOLS
from tests.support.hand_overs import make_hand_over, make_prefill, read

P2P = PROTOCOLS["p2p"]
BODY = b'{"prompt":"x","max_tokens":9} '


def hand_over(**fields):
    return make_hand_over(BODY, protocol="p2p", **fields)


def addresses(request_id):
    """As the engines find them in a request's name."""
    text = request_id.decode()
    return (
        re.search(r"___prefill_addr_(.*):(\d+)___", text).groups(),
        re.search(r"___decode_addr_(.*):(\d+)", text).groups(),
    )


def test_the_request_id_spells_both_addresses_and_the_decode_body_is_the_clients():
    prefill, decode = P2P.prefill_leg(hand_over()), P2P.decode_leg(hand_over(), b"")
    assert prefill.request_id == b"___prefill_addr_prefill:21001___decode_addr_decode:22001_call-1"
    assert decode.request_id == prefill.request_id
    assert decode.body == BODY
    assert read(prefill.body) == {"prompt": "x", "max_tokens": 1, "stream": False, "ignore_eos": True}


@pytest.mark.parametrize(
    "client_id", [b"plain", b"job:17", b"a___b:9___c", b"___decode_addr_6.6.6.6:1", b"::1:2:3"]
)
def test_no_name_of_a_client_hides_the_addresses(client_id):
    leg = P2P.prefill_leg(hand_over(request_id=client_id))
    assert addresses(leg.request_id) == (("prefill", "21001"), ("decode", "22001"))


def test_an_ipv6_address_stands_in_brackets():
    leg = P2P.prefill_leg(hand_over(prefill=make_prefill("p2p", host="fd00::1")))
    assert addresses(leg.request_id)[0] == ("[fd00::1]", "21001")
