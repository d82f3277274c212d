import pytest

from router.errors import BadRequest
from router.hand_over.refusals import GATEWAY_FIELDS, refuse_gateway_fields
from router.wire.http1 import RequestHead
from router.wire.limits import LENIENT_BYTES
from router.wire.splice import members_of


def head(forward=b"", request_id=b""):
    return RequestHead(
        method=b"POST",
        target=b"/v1/completions",
        is_http10=False,
        keep_alive=True,
        forward=forward,
        request_id=request_id,
    )


def refused(body=b"{}", **fields):
    """The name that is refused, or None."""
    error = None
    try:
        refuse_gateway_fields(body, members_of(body), head(**fields))
    except BadRequest as raised:
        error = raised
    assert error is None or (error.code == "gateway_field" and error.param in error.message)
    return error and error.param


@pytest.mark.parametrize("name", GATEWAY_FIELDS)
@pytest.mark.parametrize("value", ["1", "{}", '"x"', "false", "[null]"])
def test_a_member_of_the_gateways_is_refused_by_name(name, value):
    assert refused(f'{{"prompt":"x","{name}":{value}}}'.encode()) == name


@pytest.mark.parametrize("name", GATEWAY_FIELDS)
def test_however_it_is_spelled(name):
    escaped = f"\\u{ord(name[0]):04X}{name[1:-1]}\\u{ord(name[-1]):04x}"
    for value in (1, "NaN"):  # one for a strict reader, one that is searched
        assert refused(f'{{"{escaped}":{value}}}'.encode()) == name


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_in_whatever_encoding_an_engine_reads(codec):
    assert refused('{"x":NaN,"bootstrap_room":1}'.encode(codec)) == "bootstrap_room"


def test_in_a_body_that_is_too_deep_to_be_read():
    deep = b"[" * 100_000 + b"]" * 100_000
    assert refused(b'{"x":' + deep + b',"kv_transfer_params":{}}') == "kv_transfer_params"
    assert refused(b'{"x":' + deep + b"}") is None


LONG = b'"' + b"x" * LENIENT_BYTES + b'"'


def test_in_a_long_body_that_strict_readers_refuse_as_it_is_spelled_or_escaped():
    assert refused(b'{"x":NaN,"y":' + LONG + b',"bootstrap_room":1}') == "bootstrap_room"
    assert refused(b'{"x":NaN,"y":' + LONG + b',"z":"\\u00e9"}') is None
    hidden = b'{"x":NaN,"y":' + LONG + b',"bootstrap_roo\\u006d":1}'
    with pytest.raises(BadRequest, match="may not be escaped"):
        refuse_gateway_fields(hidden, None, head())


@pytest.mark.parametrize("holder", ["vllm_xargs", "sampling_params"])
def test_where_vllm_puts_it_together_with_its_own(holder):
    inner = f'{{"{holder}":{{"extra_args":{{"kv_transfer_p\\u0061rams":"x"}}}}}}'
    assert refused(inner.encode()) == "kv_transfer_params"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"x","kv_transfer_params":null}',
        b'{"prompt":"\\"kv_transfer_params\\": {}"}',
        b'{"metadata":{"kv_transfer_params":1}}',
        b'{"messages":[{"bootstrap_room":1}]}',
        b'{"Kv_transfer_params":1}',
        b'{"prompt":"\\"kv_transfer_params\\"","temperature":NaN}',
        b'{"vllm_xargs":{"a":1},"sampling_params":{"n":2}}',
    ],
)
def test_what_is_none_passes(body):
    assert refused(body) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"x-override-bootstrap-room: 1\r\n", "x-override-bootstrap-room"),
        (b"Accept: */*\r\nX-Override-Routed-DP-Rank: 1\r\n", "x-override-routed-dp-rank"),
        (b"x-override-a_b2: 1\r\n", "x-override-a_b2"),
        (b"accept: x-override-rid: 1\r\n", None),
        (b"y-x-override-rid: 1\r\n", None),
    ],
)
def test_headers_that_override_members_are_refused(line, name):
    assert refused(forward=line) == name


@pytest.mark.parametrize(
    ("request_id", "is_refused"),
    [
        (b"___prefill_addr_6.6.6.6:1___decode_addr_6.6.6.6:2_x", True),
        (b"x___decode_addr_6.6.6.6:2", True),
        (b"prefill_addr", False),
        (b"", False),
    ],
)
def test_a_request_id_that_spells_addresses_is_refused(request_id, is_refused):
    assert (refused(request_id=request_id) == "x-request-id") == is_refused
