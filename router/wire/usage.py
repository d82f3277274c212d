"""What an answer says about the tokens that it took, in every protocol that is relayed.

Read from a whole JSON answer or from the data of one server-sent event; where the stream's lines are is the
business of `wire.sse`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts as the engine reported them; None where it said nothing."""

    prompt_tokens: int | None
    """All of the prompt, cached tokens included."""
    cached_tokens: int | None
    completion_tokens: int | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _UsageFields(msgspec.Struct, gc=False):
    """The union of the protocols' spellings."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cached_tokens: int | None = None


class _Holder(msgspec.Struct, gc=False):
    usage: _UsageFields | None = None


class _Answer(msgspec.Struct, gc=False):
    usage: _UsageFields | None = None
    response: _Holder | None = None
    """Events of the responses API carry the response so far."""
    message: _Holder | None = None
    """The first event of the messages API carries the message so far."""
    meta_info: _UsageFields | None = None
    """SGLang's own API."""


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_batch = msgspec.json.Decoder(list[_Answer]).decode


def usage_of(data: bytes) -> Usage | None:
    """The usage in one JSON text, or None where it holds none that can be read. Never raises.

    A list of answers (SGLang, several prompts in one request) is summed.
    """
    if b'"usage"' not in data and b'"meta_info"' not in data:
        return None
    try:
        answers = _decode_batch(data) if data.lstrip()[:1] == b"[" else [_decode_answer(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = [_normalised(fields) for answer in answers if (fields := _fields_of(answer)) is not None]
    return _sum(found) if found else None


def _fields_of(answer: _Answer) -> _UsageFields | None:
    for holder in (answer, answer.response, answer.message):
        if holder is not None and holder.usage is not None:
            return holder.usage
    return answer.meta_info


def _normalised(fields: _UsageFields) -> Usage:
    if fields.cache_read_input_tokens is not None or fields.cache_creation_input_tokens is not None:
        return _normalised_messages(fields)
    details = fields.prompt_tokens_details or fields.input_tokens_details
    return Usage(
        prompt_tokens=fields.prompt_tokens if fields.prompt_tokens is not None else fields.input_tokens,
        cached_tokens=details.cached_tokens if details is not None else fields.cached_tokens,
        completion_tokens=(
            fields.completion_tokens if fields.completion_tokens is not None else fields.output_tokens
        ),
    )


def _normalised_messages(fields: _UsageFields) -> Usage:
    """In the messages API `input_tokens` counts only what was neither read from nor written to the cache."""
    cached, created = fields.cache_read_input_tokens or 0, fields.cache_creation_input_tokens or 0
    prompt = None if fields.input_tokens is None else fields.input_tokens + cached + created
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=fields.output_tokens)


def _sum(usages: list[Usage]) -> Usage:
    return Usage(
        prompt_tokens=_sum_known([usage.prompt_tokens for usage in usages]),
        cached_tokens=_sum_known([usage.cached_tokens for usage in usages]),
        completion_tokens=_sum_known([usage.completion_tokens for usage in usages]),
    )


def _sum_known(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
