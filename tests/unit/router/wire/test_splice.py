import pytest

from router.wire.splice import members_of, with_members


@pytest.mark.parametrize(
    ("body", "longer"),
    [
        (b"{}", b'{"a":1}'),
        (b"{ }", b'{ "a":1}'),
        (b"\n{\r\n\t}\n", b'\n{\r\n\t"a":1}\n'),
        (b'{"b":2}', b'{"b":2,"a":1}'),
        (b'{"b":2 } \r\n', b'{"b":2 ,"a":1} \r\n'),
        (b'{"b":{}}', b'{"b":{},"a":1}'),
        (b'{"b":"{"}', b'{"b":"{","a":1}'),
        (b'{"b":"}"}', b'{"b":"}","a":1}'),
        (b'{"b":[{"a":0}]}', b'{"b":[{"a":0}],"a":1}'),
        (b'{"a":0}', b'{"a":0,"a":1}'),
    ],
)
def test_members_are_appended_and_nothing_else_changes(body, longer):
    assert with_members(body, {"a": b"1"}) == longer


def test_several_members_keep_their_order():
    assert with_members(b'{"x":0}', {"b": b"null", "a": b'"y"'}) == b'{"x":0,"b":null,"a":"y"}'


def test_no_members_leave_the_body_as_it_is():
    assert with_members(b'{"x":0} ', {}) == b'{"x":0} '


def test_members_are_slices_of_the_body_and_the_last_of_equal_names_counts():
    members = members_of(b' {"a": 1.0, "b":[ 1 ,2], "\\u0061": {"c":"\\u00e9"}} ')
    assert {name: bytes(raw) for name, raw in members.items()} == {"a": b'{"c":"\\u00e9"}', "b": b"[ 1 ,2]"}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"{}"', b"{", b'{"a":NaN}', b'\xef\xbb\xbf{"a":1}', b'{"a":1}x', b'{"\xff":1}',
     b"{'a':1}", b'{"a":' + b"[" * 100_000, '{"a":1}'.encode("utf-16")],
)  # fmt: skip
def test_what_strict_readers_refuse_has_no_members(body):
    assert members_of(body) is None
