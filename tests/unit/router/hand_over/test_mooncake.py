import pytest

from router.hand_over import PROTOCOLS, IncompleteAnswer
from tests.support.hand_overs import REQUEST_ID, make_answer, make_hand_over, make_prefill, read

MOONCAKE = PROTOCOLS["mooncake"]
BODY = b'{"prompt":"x","max_tokens":9}'


def hand_over(**fields):
    return make_hand_over(BODY, protocol="mooncake", **fields)


def test_an_id_of_ours_joins_the_legs():
    prefill, decode = MOONCAKE.prefill_leg(hand_over()), MOONCAKE.decode_leg(hand_over(), make_answer(None))
    assert read(prefill.body)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-call-1",
    }
    assert read(decode.body)["kv_transfer_params"] == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": "xfer-call-1",
        "remote_bootstrap_addr": "http://prefill:21001",
        "remote_engine_id": "engine",
    }
    assert decode.body.startswith(BODY[:-1] + b",")
    assert prefill.request_id == decode.request_id == REQUEST_ID


@pytest.mark.parametrize(
    ("transfer", "address"),
    [
        ({"port": None}, "http://prefill:8998"),
        ({"host": "fd00::1", "port": 9000}, "http://[fd00::1]:9000"),
        ({"host": "10.1.1.1"}, "http://10.1.1.1:21001"),
    ],
)
def test_the_bootstrap_server_is_named_as_the_decode_worker_reaches_it(transfer, address):
    leg = MOONCAKE.decode_leg(hand_over(prefill=make_prefill("mooncake", **transfer)), make_answer(None))
    assert read(leg.body)["kv_transfer_params"]["remote_bootstrap_addr"] == address


def test_without_an_engine_id_nothing_is_sent():
    with pytest.raises(IncompleteAnswer, match="named no engine"):
        MOONCAKE.decode_leg(hand_over(engine_id=""), make_answer(None))


@pytest.mark.parametrize("reason", ["stop", "abort", None])
def test_what_did_not_end_by_its_length_has_no_blocks_left(reason):
    with pytest.raises(IncompleteAnswer, match="released"):
        MOONCAKE.decode_leg(hand_over(), make_answer(None, finish_reason=reason))


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"choices":{}}', b"\xff", b'{"choices":[' * 50_000])
def test_an_answer_that_is_none_is_incomplete(answer):
    with pytest.raises(IncompleteAnswer, match="not understood"):
        MOONCAKE.decode_leg(hand_over(), answer)


def test_an_odd_request_id_stays_json():
    leg = MOONCAKE.prefill_leg(hand_over(request_id=b'a"\\\xe9'))
    assert read(leg.body)["kv_transfer_params"]["transfer_id"] == 'xfer-a"\\\u00e9'
