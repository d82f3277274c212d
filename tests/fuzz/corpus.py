"""Valid messages, and the words that mutations are made of."""

from __future__ import annotations

from tests.support.raw_worker import END_OF_CHUNKS, STREAM_HEAD, chunk, event, json_answer
from tests.support.relay import get, post

JSON = b'{"model":"m","prompt":"p","n":123456789012345678901234567890}'
FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"7;a=b\r\n" + JSON[:7] + b"\r\n%x\r\n" % (len(JSON) - 7) + JSON[7:] + b"\r\n0\r\n"
)

HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

REQUESTS: tuple[bytes, ...] = (
    post(JSON),
    post(b"", extra="Accept: */*\r\nX-Request-Id: mine\r\n"),
    post(JSON) + post(b"{}", "/v1/embeddings"),
    post(JSON, extra="Expect: 100-continue\r\n"),
    post(JSON, extra="Connection: keep-alive, X-Own\r\nX-Own: 1\r\nTE: trailers\r\n"),
    post(JSON, "http://elsewhere/v1/completions?a=b"),
    post(JSON, extra="Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"),
    post(JSON, extra="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(FORM, "/v1/audio/transcriptions", extra="Content-Type: multipart/form-data; boundary=b\r\n"),
    CHUNKED + b"\r\n",
    CHUNKED + b"X-Trailer: 1\r\n\r\n" + post(JSON),
    get("/version"),
    get("/version", method="HEAD") + get("/health") + get("/v1/models"),
    get("/v1/responses/resp_1") + get("/nothing"),
    get("/v1/realtime?model=m", extra=HANDSHAKE),
)

EVENTS = (
    event("a"),
    event("[DONE]"),
    b": still here\n\n",
    b"event: x\r\ndata: 1\r\n\r\n",
    b"data: [DONE]\n\n",
)

ANSWERS: tuple[bytes, ...] = (
    json_answer(JSON),
    json_answer(b""),
    json_answer(b"\x1f\x8b\x08", extra=b"Content-Encoding: gzip\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"),
    STREAM_HEAD + b"".join(map(chunk, EVENTS)) + END_OF_CHUNKS,
    STREAM_HEAD + chunk(b"".join(EVENTS)) + b"0\r\nX-Trailer: 1\r\n\r\n",
    STREAM_HEAD + b"5;a=b\r\ndata:\r\n4\r\n 1\n\n\r\n000\r\n\r\n",
    STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    + chunk(b"\x1f\x8b")
    + END_OF_CHUNKS,
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(EVENTS),
    b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + json_answer(),
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\x81\x00",
)

WORDS: tuple[bytes, ...] = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"\r\n ", b"\r\n\t", b"\0", b" ", b"\t", b"\x0b", b":",
    b",", b";", b'"', b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"content-length:+5\r\n",
    b"Content-Length: 5, 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n", b"Transfer-Encoding: xchunked\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive\r\n", b"Connection: content-length\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Host: other\r\n", b"Host:\r\n", b"Expect: 100-continue\r\n", b"X-Request-Id: a\r\n",
    b"Trailer: x\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/0.9", b"GET ", b"HEAD ",
    b"CONNECT g:80 ", b"PUT ", b"OPTIONS * ", b"0\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n",
    b"ffffffffffffffff\r\n", b"10000000000000005\r\n", b"-1\r\n", b"0x5\r\n", b"data: ",
    b"data: [DONE]\n\n", b'"usage":{"prompt_tokens":1}', b"\xff\xfe", b"\xe2\x80\xa8", post(b"hello"),
    get("/version"), json_answer(), b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
)  # fmt: skip
