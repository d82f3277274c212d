import pytest

from router.hand_over import PROTOCOLS, IncompleteAnswer
from tests.support.hand_overs import PARAMETERS, REQUEST_ID, make_answer, make_hand_over, make_prefill, read

NIXL = PROTOCOLS["nixl"]
BODY = b'{"prompt":"x", "max_tokens":9, "stream":true}\n'
ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEYS_BY_VERSION = {
    "0.9.2": {},
    "0.12.0": {},
    "0.14.1": {"remote_request_id": "cmpl-1"},
    "0.24.0": {"remote_num_tokens": 40},
    "0.28.0": {"remote_blocks_expiry_time": None, "transfer_mode": "pull"},
    "0.32.0": {"dcp_size": 1, "pp_size": 1, "remote_prefill_cached_tokens": 0},
    "0.33.0": {"remote_registration_generation": 3},
}


def parameters_of(version):
    """As that release's prefill worker answers: each added to what the ones before had."""
    known = {name: value for name, value in PARAMETERS.items() if name != "remote_request_id"}
    for release, more in KEYS_BY_VERSION.items():
        known |= more
        if release == version:
            return known
    raise KeyError(version)


def decode_leg(answer, version="0.32.0", body=BODY):
    return NIXL.decode_leg(make_hand_over(body, prefill=make_prefill("nixl", version=version)), answer)


def test_the_prefill_worker_is_asked_to_keep_the_kv_for_another():
    leg = NIXL.prefill_leg(make_hand_over(BODY))
    assert leg.request_id == REQUEST_ID
    assert read(leg.body) == {
        "prompt": "x",
        "max_tokens": 1,
        "stream": False,
        "ignore_eos": True,
        "kv_transfer_params": ASKED,
    }


def test_the_decode_worker_gets_the_parameters_byte_for_byte():
    parameters = make_answer(PARAMETERS | {"later": {"x": 1.50, "y": "\u00e9"}})
    spaced = parameters.replace(b'"later"', b' "later"  ')
    leg = decode_leg(spaced)
    raw = spaced[spaced.index(b'"kv_transfer_params": ') + 22 : -1]
    assert leg.body == BODY[:-2] + b',"kv_transfer_params":' + raw + b"}\n"
    assert leg.request_id == REQUEST_ID


@pytest.mark.parametrize("version", KEYS_BY_VERSION)
def test_every_releases_answer_is_complete(version):
    known = parameters_of(version)
    assert read(decode_leg(make_answer(known), version).body)["kv_transfer_params"] == known


@pytest.mark.parametrize("version", ["0.14.0", "0.14.1", "v0.32.0", "1.0", "", "dev", "0.14rc1"])
def test_an_answer_without_the_requests_name_is_incomplete_from_0_14_on(version):
    with pytest.raises(IncompleteAnswer, match="remote_request_id"):
        decode_leg(make_answer(parameters_of("0.12.0")), version)


REQUIRED = ("do_remote_prefill", "remote_engine_id", "remote_request_id", "remote_host", "remote_port",
            "remote_block_ids", "tp_size")  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_a_parameter_that_is_missing_or_null_is_named(name):
    without = {key: value for key, value in PARAMETERS.items() if key != name}
    for parameters in (without, PARAMETERS | {name: None}):
        with pytest.raises(IncompleteAnswer, match=name):
            decode_leg(make_answer(parameters))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_remote_prefill", False),
        ("do_remote_prefill", 1),
        ("remote_engine_id", ""),
        ("remote_engine_id", 7),
        ("remote_request_id", ["cmpl"]),
        ("remote_host", ""),
        ("remote_host", 127),
        ("remote_port", "5600"),
        ("remote_port", 0),
        ("remote_port", True),
        ("remote_port", 5600.5),
        ("tp_size", 0),
        ("tp_size", "1"),
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [[], []]),
        ("remote_block_ids", {"0": [1]}),
        ("remote_block_ids", "1,2"),
        ("remote_block_ids", ["1"]),
        ("remote_block_ids", [[1], 2]),
        ("remote_block_ids", [[1, None]]),
        ("remote_block_ids", [True]),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named(name, value):
    with pytest.raises(IncompleteAnswer, match=name):
        decode_leg(make_answer(PARAMETERS | {name: value}))


@pytest.mark.parametrize("blocks", [[1, 2], [[1, 2]], [[], [7]], [[0], [1, 2]]])
def test_blocks_are_a_list_or_a_list_for_each_group(blocks):
    known = PARAMETERS | {"remote_block_ids": blocks}
    assert read(decode_leg(make_answer(known)).body)["kv_transfer_params"] == known


def test_a_prefill_worker_that_pushes_names_no_blocks():
    pushing = {k: v for k, v in PARAMETERS.items() if k != "remote_block_ids"} | {"transfer_mode": "push"}
    assert read(decode_leg(make_answer(pushing)).body)["kv_transfer_params"] == pushing


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "remote_block_ids"])
def test_all_else_it_names(name):
    with pytest.raises(IncompleteAnswer, match=name):
        decode_leg(make_answer(PARAMETERS | {"transfer_mode": "push", name: None}))


@pytest.mark.parametrize("answer", [make_answer(None), make_answer({}), b"{}", b'{"choices":[]}'])
def test_an_answer_without_parameters_says_what_the_worker_lacks(answer):
    with pytest.raises(IncompleteAnswer, match="KV connector"):
        decode_leg(answer)


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"null", b"not json", b"\xff", make_answer([]), make_answer("x"), make_answer(3),
     make_answer()[:-9], b'{"kv_transfer_params":' + b"[" * 100_000, b"data: {}\n\ndata: [DONE]\n\n"],
)  # fmt: skip
def test_an_answer_that_is_none_is_incomplete(answer):
    with pytest.raises(IncompleteAnswer, match="not understood"):
        decode_leg(answer)
