"""What the engines' `/tokenize` have in common: the request as a JSON object of a body's own slices."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import SMALL_BYTES

TOKENIZE_PATH = "/tokenize"


class TokenizeAnswer(msgspec.Struct, gc=False):
    """The ids as a slice: lists of some hundred thousand are decoded in pieces."""

    tokens: msgspec.Raw


def json_object(members: Iterable[tuple[str, bytes | msgspec.Raw]]) -> bytes:
    """A JSON object of values that are JSON already, so nothing is decoded and encoded anew."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), bytes(value)) for name, value in members) + b"}"


async def offers_tokenize(http: WorkerHttp, model: str) -> str:
    """Have one word tokenized. Returns "" when that works, else why not."""
    word = json_object([("model", msgspec.json.encode(model)), ("prompt", b'"a"')])
    try:
        answer = await http.post_json(TOKENIZE_PATH, word, SMALL_BYTES)
    except CallFailed as error:
        return str(error)
    if not answer.is_success:
        return f"{TOKENIZE_PATH} answered {answer.status}"
    try:
        msgspec.json.decode(answer.body, type=TokenizeAnswer)
    except (msgspec.DecodeError, RecursionError):
        return f"{TOKENIZE_PATH} answered rubbish"
    return ""
