"""HTTP/1.1 messages read as RFC 9112 says, by a reader that shares nothing with the gateway's.

Whatever leaves a doubt ends the reading: what was read before it counts, what follows does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
REQUEST_LINE = re.compile(rb"(%b) +([\x21-\x7e]+) +HTTP/1\.([01])" % TOKEN)
STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?")
HEADER = re.compile(rb"(%b):[ \t]*([^\x00\r\n]*?)[ \t]*" % TOKEN)
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(;[^\x00\r\n]*)?")


class Doubt(Exception):
    """The bytes are no message, or may be read in more than one way."""


@dataclass(frozen=True)
class Request:
    method: bytes
    target: bytes
    """As a path."""
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_whole: bool = True


@dataclass
class Head:
    first_line: bytes
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    end: int

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: bytes) -> list[bytes]:
        return [token.strip().lower() for value in self.values(name) for token in value.split(b",")]


def read_requests(data: bytes) -> list[Request]:
    """Up to the first doubt or the end of the data."""
    requests: list[Request] = []
    at = 0
    try:
        while at < len(data):
            at = _skip_blank_lines(data, at)
            request, at, goes_on = _read_request(data, at)
            requests.append(request)
            if not goes_on:
                break
    except Doubt:
        pass
    return requests


def _skip_blank_lines(data: bytes, at: int) -> int:
    """Servers may skip them before a request (RFC 9112 section 2.2)."""
    while data[at : at + 1] in (b"\r", b"\n"):
        at += 1
    return at


def _read_request(data: bytes, at: int) -> tuple[Request, int, bool]:
    head = read_head(data, at)
    match = REQUEST_LINE.fullmatch(head.first_line)
    if match is None:
        raise Doubt
    method, target, minor = match.groups()
    if len(head.values(b"host")) > 1 or (minor == b"1" and not head.values(b"host")):
        raise Doubt
    if minor == b"0" and head.values(b"transfer-encoding"):
        raise Doubt
    body, end = _read_body(data, head, until_eof=False)
    tokens = head.tokens(b"connection")
    goes_on = b"close" not in tokens if minor == b"1" else b"keep-alive" in tokens
    return Request(method, _path(target), body), end, goes_on


def _path(target: bytes) -> bytes:
    match = re.fullmatch(rb"(?i:https?)://[^/]*(/.*)?", target)
    return (match[1] or b"/") if match else target


def read_head(data: bytes, at: int) -> Head:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise Doubt
    first_line, *lines = data[at:end].split(b"\r\n")
    headers = []
    for line in lines:
        match = HEADER.fullmatch(line)
        if match is None:
            raise Doubt
        headers.append((match[1].lower(), match[2]))
    return Head(first_line, headers, end + 4)


def _read_body(data: bytes, head: Head, *, until_eof: bool) -> tuple[bytes, int]:
    lengths, codings = head.values(b"content-length"), head.values(b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise Doubt
    if codings:
        if codings[0].lower() != b"chunked":
            raise Doubt
        return _read_chunks(data, head.end)
    if not lengths:
        return (data[head.end :], len(data)) if until_eof else (b"", head.end)
    if not re.fullmatch(rb"[0-9]+", lengths[0]):
        raise Doubt
    end = head.end + int(lengths[0])
    if end > len(data):
        raise Doubt
    return data[head.end : end], end


def _read_chunks(data: bytes, at: int) -> tuple[bytes, int]:
    body = bytearray()
    while True:
        line, at = _line(data, at)
        match = CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise Doubt
        size = int(match[1], 16)
        if size == 0:
            break
        if data[at + size : at + size + 2] != b"\r\n":
            raise Doubt
        body += data[at : at + size]
        at += size + 2
    while (line_end := _line(data, at))[0]:
        if HEADER.fullmatch(line_end[0]) is None:
            raise Doubt
        at = line_end[1]
    return bytes(body), line_end[1]


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Doubt
    return data[at:end], end + 2


def read_answer(data: bytes, at: int, method: bytes) -> tuple[Answer, int]:
    """The answer to a request, which the end of the data may end; 1xx before it are skipped. Raises Doubt."""
    while True:
        head = read_head(data, at)
        match = STATUS_LINE.fullmatch(head.first_line)
        if match is None:
            raise Doubt
        status = int(match[2])
        if status >= 200 or status == 101:
            break
        at = head.end
    if method == b"HEAD" or status in (204, 304):
        return Answer(status, tuple(head.headers), b""), head.end
    body, end = _read_body(data, head, until_eof=True)
    return Answer(status, tuple(head.headers), body), end
