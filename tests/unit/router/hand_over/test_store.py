from router.hand_over import PROTOCOLS
from tests.support.hand_overs import REQUEST_ID, make_hand_over, read

STORE = PROTOCOLS["store"]


def test_a_prefill_is_a_request_for_one_token_and_the_decode_workers_is_the_clients():
    hand_over = make_hand_over(b'{"prompt":["x","y"],"n":2}', protocol="store")
    prefill, decode = STORE.prefill_leg(hand_over), STORE.decode_leg(hand_over, b"whatever")
    assert read(prefill.body) == {
        "prompt": ["x", "y"],
        "n": 1,
        "max_tokens": 1,
        "stream": False,
        "ignore_eos": True,
    }
    assert decode.body == hand_over.body
    assert prefill.request_id == decode.request_id == REQUEST_ID
