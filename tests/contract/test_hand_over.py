"""What every hand-over protocol must do, whatever it sends."""

import pytest

from router.hand_over import PROTOCOLS, IncompleteAnswer, why_whole
from router.wire.endpoints import ENDPOINTS
from tests.support.hand_overs import make_answer, make_hand_over, read

BODY = (
    b'{"model":"m", "messages":[{"role":"user","content":"\\u00e9"}],"tools":[{"type":"function"}],"n":1,'
    b'"stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"cache_salt":"s","x":1.50}\r\n'
)
CHAT = "/v1/chat/completions"


@pytest.fixture(params=PROTOCOLS)
def name(request):
    return request.param


@pytest.fixture
def protocol(name):
    return PROTOCOLS[name]


def legs(name, body=BODY, answer=None, **fields):
    hand_over = make_hand_over(body, protocol=name, path=CHAT, **fields)
    protocol = PROTOCOLS[name]
    prefill = protocol.prefill_leg(hand_over)
    if answer is None:
        answer = b"" if protocol.is_concurrent else make_answer()
    return prefill, protocol.decode_leg(hand_over, answer)


def test_the_clients_bytes_begin_both_legs(name):
    for leg in legs(name):
        assert leg.body.startswith(BODY[:-3])
        assert leg.body.endswith(b"}\r\n")


def test_the_decode_leg_says_all_that_the_client_said(name):
    said, sent = read(BODY), read(legs(name)[1].body)
    assert {key: sent[key] for key in said} == said


def test_both_legs_have_the_same_id_and_it_holds_the_requests_own(name):
    prefill, decode = legs(name, request_id=b"client-1")
    assert prefill.request_id == decode.request_id
    assert b"client-1" in prefill.request_id


def test_the_same_hand_over_says_the_same_again(name):
    assert legs(name) == legs(name)


def test_another_number_and_id_join_other_legs(name, protocol):
    """But where nothing joins them."""
    first, second = legs(name), legs(name, number=99, request_id=b"call-2")
    assert (first != second) or name == "store"


def test_an_empty_object_stays_json(name):
    for leg in legs(name, b"{}"):
        assert isinstance(read(leg.body), dict)


def test_a_protocol_that_waits_for_an_answer_judges_it_without_failing(name, protocol):
    for answer in (b"", b"null", b"\xff", b"{}", b"[" * 100_000, make_answer(None, finish_reason=None)):
        try:
            decode = legs(name, answer=answer)[1]
        except IncompleteAnswer as error:
            said = str(error)
        else:
            said = decode.body.decode()
        assert said


def test_concurrent_legs_need_no_answer(name, protocol):
    if protocol.is_concurrent:
        assert legs(name, answer=b"")[1].body


def test_ordinary_requests_are_split(name, protocol):
    members = make_hand_over(BODY, protocol=name, path=CHAT).members
    assert why_whole(members, ENDPOINTS[CHAT], [name], protocol.takes_batches) == ""
