"""Hand-overs between two real vLLM 0.32 engines: what was sent there is what is sent here."""

import itertools
import json  # noqa: TID251 - as the engines read what they were sent

import pytest

from router.hand_over import PROTOCOLS, IncompleteAnswer
from tests.support.hand_overs import make_hand_over, read
from tests.support.recordings import FIXTURES

NIXL = PROTOCOLS["nixl"]


def entries():
    for name in ("fail", "recompute"):
        lines = (FIXTURES / "vllm-0.32.0-nixl" / f"{name}.jsonl").read_text().splitlines()
        yield from map(json.loads, lines)


ENTRIES = list(entries())


def is_hand_over(prefill, decode):
    """Of one prompt: a recorded one has another for the decode engine, to see what becomes of it."""
    sides = (prefill["to"], decode["to"]) == ("prefill", "decode")
    split = "kv_transfer_params" in prefill["body"] and "kv_transfer_params" in decode["body"]
    return sides and split and prefill["body"].get("prompt") == decode["body"].get("prompt")


PAIRS = [
    pytest.param(prefill, decode, id=prefill["label"])
    for prefill, decode in itertools.pairwise(ENTRIES)
    if is_hand_over(prefill, decode)
]


def hand_over_of(decode):
    """The client's request behind a decode leg: the same without parameters."""
    body = {key: value for key, value in decode["body"].items() if key != "kv_transfer_params"}
    return make_hand_over(body, path=decode["path"], request_id=b"r")


def test_there_are_enough_of_them():
    assert len(PAIRS) == 10


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_our_prefill_leg_asks_for_what_was_asked(prefill, decode):
    ours, recorded = read(NIXL.prefill_leg(hand_over_of(decode)).body), dict(prefill["body"])
    assert ours.pop("ignore_eos") is True
    assert ours.pop("stream_options", None) is None
    assert (ours.pop("stream"), ours.pop("max_tokens")) == (recorded.pop("stream", False), 1)
    recorded.pop("max_tokens")  # 5 in one of them, which was found to work too
    asked = ours.pop("kv_transfer_params")
    assert asked == asked | recorded.pop("kv_transfer_params")  # one says `do_remote_decode` alone
    assert ours == recorded


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_our_decode_leg_says_what_was_said(prefill, decode):
    leg = NIXL.decode_leg(hand_over_of(decode), json.dumps(prefill["response"]).encode())
    parameters = prefill["response"]["kv_transfer_params"]
    if "unreachable" not in decode["label"]:  # there the address was changed on the way
        assert parameters == decode["body"]["kv_transfer_params"]
    assert read(leg.body) == decode["body"] | {"kv_transfer_params": parameters}


@pytest.mark.parametrize("label", ["prefill with stream true", "prefill without parameters"])
def test_answers_without_parameters_are_not_sent_on(label):
    entry = next(entry for entry in ENTRIES if entry["label"] == label)
    answer = entry["response"]
    data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    with pytest.raises(IncompleteAnswer):
        NIXL.decode_leg(hand_over_of(ENTRIES[1]), data)


def test_the_parameters_that_killed_an_engine_are_not_sent_on():
    killed = next(entry for entry in ENTRIES if entry["label"] == "decode with remote_host missing")
    answer = json.dumps({"choices": [], "kv_transfer_params": killed["body"]["kv_transfer_params"]}).encode()
    with pytest.raises(IncompleteAnswer, match="remote_host"):
        NIXL.decode_leg(hand_over_of(killed), answer)
