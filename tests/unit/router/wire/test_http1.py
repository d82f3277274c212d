"""Heads: what is refused, what is stripped, what is kept as it is."""

from __future__ import annotations

import pytest

from router.errors import BadRequest, NotSupported, WorkerProtocolError
from router.wire import http1
from router.wire.http1 import RequestHead, ResponseHead, read_request_head, read_response_head

HOST = (b"Host", b"h")


def request(*headers: tuple[bytes, bytes], version: str = "1.1", target: bytes = b"/v1/x?a=b") -> RequestHead:
    return read_request_head(b"POST", target, version, True, headers)


def response(*headers: tuple[bytes, bytes], status: int = 200) -> ResponseHead:
    return read_response_head(status, b"OK", "1.1", headers)


def test_headers_go_on_as_they_came() -> None:
    head = request((b"X-One", b"1"), HOST, (b"x-one", b"2"), (b"Content-Type", b"application/json"))
    assert head.forward == b"X-One: 1\r\nx-one: 2\r\nContent-Type: application/json\r\n"
    assert head.path == "/v1/x"


@pytest.mark.parametrize(
    ("target", "model"),
    [
        (b"/v1/realtime?model=org%2Fname+x&a=1", "org/name x"),
        (b"/v1/realtime?model=a&model=b", "b"),
        (b"/v1/realtime?model=", ""),
        (b"/v1/realtime?models=a", ""),
        (b"/v1/realtime", ""),
        (b"/v1/realtime?model=%ff", "\ufffd"),
    ],
)
def test_values_in_the_query(target: bytes, model: str) -> None:
    assert request(HOST, target=target).in_query("model") == model


def test_what_the_forwarder_decides_about_is_taken_out() -> None:
    head = request(
        HOST,
        (b"Authorization", b"Bearer a"),
        (b"X-API-Key", b"b"),
        (b"X-Request-ID", b"c"),
        (b"Content-Length", b"12"),
    )
    assert head.forward == b""
    assert (head.authorization, head.api_key, head.request_id) == (b"Bearer a", b"b", b"c")
    assert head.content_length == 12


@pytest.mark.parametrize("name", sorted(http1.HOP_BY_HOP - {b"transfer-encoding"}))
def test_hop_by_hop_headers_do_not_go_on(name: bytes) -> None:
    assert request(HOST, (name.title(), b"x")).forward == b""
    assert response((name.title(), b"x")).forward == b""


def test_connection_names_more_of_them_but_not_what_the_body_means() -> None:
    named = (b"Connection", b"close, X-A ,content-type, content-encoding")
    others = ((b"x-a", b"1"), (b"Content-Type", b"t"), (b"Content-Encoding", b"gzip"), (b"X-B", b"2"))
    kept = b"Content-Type: t\r\nContent-Encoding: gzip\r\nX-B: 2\r\n"
    assert request(HOST, named, *others).forward == kept
    assert response(named, *others).forward == kept


@pytest.mark.parametrize("hosts", [[], [HOST, HOST]])
def test_exactly_one_host(hosts: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(BadRequest, match="Host"):
        request(*hosts)


def test_http10_needs_no_host() -> None:
    assert request(version="1.0").is_http10


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.2"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(BadRequest, match="version"):
        request(HOST, version=version)
    with pytest.raises(WorkerProtocolError, match="version"):
        read_response_head(200, b"OK", version, ())


def test_transfer_codings() -> None:
    assert request(HOST, (b"Transfer-Encoding", b" Chunked")).is_chunked
    assert response((b"Transfer-Encoding", b"chunked")).is_chunked
    with pytest.raises(NotSupported):
        request(HOST, (b"Transfer-Encoding", b"gzip, chunked"))
    with pytest.raises(BadRequest):
        request((b"Transfer-Encoding", b"chunked"), version="1.0")
    with pytest.raises(WorkerProtocolError):
        response((b"Transfer-Encoding", b"gzip, chunked"))


@pytest.mark.parametrize(
    ("target", "expected"),
    [(b"/a?b", b"/a?b"), (b"http://h/a?b", b"/a?b"), (b"HTTPS://h:1", b"/"), (b"http://h/", b"/")],
)
def test_targets(target: bytes, expected: bytes) -> None:
    assert request(HOST, target=target).target == expected


@pytest.mark.parametrize("target", [b"*", b"h:80", b"ftp://h/a"])
def test_targets_that_are_no_path(target: bytes) -> None:
    with pytest.raises(BadRequest):
        request(HOST, target=target)


def test_expectation_holds_for_http11_only() -> None:
    expect = (b"Expect", b"100-Continue")
    assert request(HOST, expect).expects_continue
    assert not request(expect, version="1.0").expects_continue
    assert not request(HOST, (b"Expect", b"miracles")).expects_continue


@pytest.mark.parametrize(
    ("head", "method", "has_body", "ends_with_connection"),
    [
        (response((b"Content-Length", b"3")), b"GET", True, False),
        (response((b"Content-Length", b"0")), b"GET", False, False),
        (response((b"Transfer-Encoding", b"chunked")), b"GET", True, False),
        (response(), b"GET", True, True),
        (response(), b"HEAD", False, False),
        (response((b"Content-Length", b"3")), b"HEAD", False, False),
        (response(status=204), b"GET", False, False),
        (response(status=304), b"GET", False, False),
    ],
)
def test_body_of_an_answer(
    head: ResponseHead, method: bytes, has_body: bool, ends_with_connection: bool
) -> None:
    assert head.has_body(method) is has_body
    assert head.ends_with_connection(method) is ends_with_connection


def test_kinds_of_answers() -> None:
    stream = response(
        (b"Content-Type", b"Text/Event-Stream; charset=utf-8"), (b"Content-Encoding", b"identity")
    )
    assert stream.is_event_stream
    assert not stream.is_encoded
    packed = response((b"content-type", b"application/json"), (b"content-encoding", b"zstd"))
    assert packed.is_json
    assert packed.is_encoded


def test_upgrade_is_taken_back_and_the_rest_stays() -> None:
    headers = (
        HOST,
        (b"Connection", b"Upgrade, HTTP2-Settings, close"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AA"),
        (b"Content-Length", b"2"),
    )
    assert http1.without_upgrade(b"POST", b"/a", "1.1", headers) == (
        b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    )
    two_hosts = ((b"Host", b""), *headers)
    assert b"Host: \r\nHost: h\r\n" in http1.without_upgrade(b"POST", b"/a", "1.1", two_hosts)
    only_upgrade = http1.without_upgrade(b"GET", b"/", "1.1", (HOST, (b"Connection", b"upgrade")))
    assert only_upgrade == b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def test_own_answers() -> None:
    assert http1.answer(404, b"{}", headers=(("allow", "GET"),), close=True) == (
        b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\nallow: GET\r\n"
        b"connection: close\r\n\r\n{}"
    )
    assert http1.answer(200, b"{}", without_body=True).endswith(b"content-length: 2\r\n\r\n")


def test_chunks() -> None:
    assert http1.chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_the_rank_that_a_client_asks_for_is_kept_apart():
    headers = [(b"Host", b"h"), (b"X-Data-Parallel-Rank", b"3"), (b"X-Other", b"1")]
    head = read_request_head(b"POST", b"/v1/completions", "1.1", True, headers)
    assert head.rank_lines == b"x-data-parallel-rank: 3\r\n"
    assert head.forward == b"X-Other: 1\r\n"
