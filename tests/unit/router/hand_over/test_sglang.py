import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.hand_over import PROTOCOLS
from tests.support.hand_overs import make_hand_over, make_prefill, read

SGLANG = PROTOCOLS["sglang"]
NUMBERS = st.integers(0, 2**63 - 1)


def placed(body, path="/v1/chat/completions", **fields):
    """The three members of both legs."""
    hand_over = make_hand_over(body, protocol="sglang", path=path, **fields)
    prefill, decode = SGLANG.prefill_leg(hand_over), SGLANG.decode_leg(hand_over, b"")
    assert prefill == decode
    sent = read(decode.body)
    return tuple(sent["bootstrap_" + name] for name in ("host", "port", "room"))


def test_both_legs_are_the_clients_bytes_with_the_place_behind_them():
    body = b'{"messages":[], "stream":true}\n'
    leg = SGLANG.prefill_leg(make_hand_over(body, protocol="sglang", path="/v1/chat/completions"))
    added = b',"bootstrap_host":"prefill","bootstrap_port":21001,"bootstrap_room":4711}\n'
    assert leg.body == body[:-2] + added


@pytest.mark.parametrize(
    ("transfer", "host", "port"),
    [
        ({"port": None}, "prefill", 8998),
        ({"host": "fd00::1", "port": 9000}, "[fd00::1]", 9000),
        ({"host": "[fd00::1]"}, "[fd00::1]", 21001),
        ({"host": "10.1.1.1"}, "10.1.1.1", 21001),
    ],
)
def test_the_place_is_the_prefill_servers(transfer, host, port):
    assert placed({}, prefill=make_prefill("sglang", **transfer))[:2] == (host, port)


@pytest.mark.parametrize("number", [0, 1, 2**53 + 1, 2**62, 2**63 - 1])
def test_rooms_survive_as_integers(number):
    room = placed({}, number=number)[2]
    assert type(room) is int
    assert room == number


@given(number=NUMBERS, num_ranks=st.integers(1, 64), data=st.data())
def test_a_room_leaves_its_rank_when_divided_by_their_number(number, num_ranks, data):
    rank = data.draw(st.integers(0, num_ranks - 1))
    prefill = make_prefill("sglang", dp_rank=rank, num_ranks=num_ranks)
    rooms = placed({"text": ["a"] * 5}, "/generate", number=number, prefill=prefill)[2]
    assert len(set(rooms)) == 5
    assert all(0 <= room < 2**63 and room % num_ranks == rank for room in rooms)


@given(number=NUMBERS)
def test_where_the_server_chooses_its_rank_any_room_will_do(number):
    assert placed({}, number=number, prefill=make_prefill("sglang", num_ranks=8))[2] == number


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/generate", {"text": ["a", "b", "c"]}, 3),
        ("/generate", {"text": ["a"]}, 1),
        ("/generate", {"input_ids": [[1, 2], [3]]}, 2),
        ("/v1/completions", {"prompt": ["a", "b"]}, 2),
        ("/v1/completions", {"prompt": [[1], [2]], "n": 3}, 2),
    ],
)
def test_a_batch_has_one_place_for_each_prompt(path, body, count):
    hosts, ports, rooms = placed(body, path)
    assert hosts == ["prefill"] * count
    assert ports == [21001] * count
    assert len(set(rooms)) == len(rooms) == count


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"n": 4}}),
        ("/generate", {"input_ids": [1, 2]}),
        ("/v1/completions", {"prompt": "a", "n": 4}),
        ("/v1/completions", {"prompt": [1, 2]}),
        ("/v1/chat/completions", {"messages": [], "n": 4}),
    ],
)
def test_one_prompt_has_one_place_which_the_server_repeats_for_each_answer(path, body):
    assert placed(body, path) == ("prefill", 21001, 4711)
