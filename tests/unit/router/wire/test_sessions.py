import pytest

from router.wire.openai import ParsedBody
from router.wire.sessions import session_of

BODY = ParsedBody(session="from the body", user="somebody")


@pytest.mark.parametrize(
    "name",
    [
        b"X-Session-ID", b"x-session-affinity", b"session-id", b"session_id", b"x-claude-code-session-id",
        b"X-LiteLLM-Session-Id", b"X-SMG-Routing-Key", b"X-User-ID", b"X-Tenant-ID",
    ],
)  # fmt: skip
def test_every_name_is_found_in_any_case(name):
    for spelled in (name, name.lower(), name.upper()):
        lines = b"Accept: */*\r\n" + spelled + b":  k 1 \r\nUser-Agent: x\r\n"
        assert session_of(lines, None) == "k 1"


@pytest.mark.parametrize(
    ("lines", "body", "session"),
    [
        (b"x-session-id: head\r\nx-user-id: u\r\n", BODY, "head"),
        (b"session-id: second\r\nx-session-id: first\r\n", BODY, "first"),
        (b"x-user-id: u\r\nx-tenant-id: t\r\n", BODY, "from the body"),
        (b"x-user-id: u\r\nx-tenant-id: t\r\n", ParsedBody(user="somebody"), "u"),
        (b"x-tenant-id: t\r\n", ParsedBody(user="somebody"), "somebody"),
        (b"x-tenant-id: t\r\n", ParsedBody(), "t"),
        (b"x-tenant-id: t\r\n", None, "t"),
        (b"x-session-id: \r\nx-user-id: u\r\n", None, "u"),
        (b"not-x-session-id: a\r\nreferer: x-session-id: b\r\n", None, None),
        (b"", ParsedBody(), None),
        (b"", None, None),
    ],
)
def test_the_narrowest_name_wins(lines, body, session):
    assert session_of(lines, body) == session


def test_bytes_beyond_ascii_are_a_key_like_others():
    assert session_of(b"x-session-id: \xff\xfe\r\n", None) == "\xff\xfe"
