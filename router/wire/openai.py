"""What routing reads from a request's JSON body.

One typed pass over the bytes picks out the fields of interest as slices of the body; everything else is
skipped, and what routing does not need it does not judge: odd values elsewhere are for the worker to refuse.
How the prompt's slices become tokens is the business of `router.tokens`.
"""

from __future__ import annotations

import json  # noqa: TID251 - the lenient reader: it takes NaN, Infinity, a BOM and lone surrogates as engines do
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from router.errors import BadRequest
from router.wire.endpoints import Endpoint, Protocol
from router.wire.limits import LENIENT_BYTES, MODEL_SEARCH_BYTES

Slices = Mapping[str, msgspec.Raw]
"""JSON values as they stand in the body, by the name of their field; absent and null ones are left out."""


@dataclass(slots=True, kw_only=True)
class ParsedBody:
    """What routing needs of a body; the bytes stay with the caller."""

    model: str | None = None
    stream: bool = False
    n: int = 1
    """Choices asked for."""
    prompt: Slices = field(default_factory=dict)
    """The fields that make up the prompt. Empty when the body is routed without a prefix."""
    cache_salt: str = ""
    session: str | None = None
    """Names the session that the request belongs to; for equality only."""
    user: str | None = None
    """Names whose request it is; likewise."""
    previous_response_id: str | None = None


PROMPT_FIELDS: Mapping[Protocol, tuple[str, ...]] = {
    Protocol.CHAT: (
        "messages", "tools", "tool_choice", "documents", "reasoning_effort", "chat_template",
        "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens",
        "truncate_prompt_tokens", "media_io_kwargs", "mm_processor_kwargs",
    ),
    Protocol.COMPLETIONS: ("prompt", "prompt_embeds", "add_special_tokens", "truncate_prompt_tokens"),
    Protocol.RESPONSES: ("instructions", "tools", "input", "previous_response_id"),
    Protocol.MESSAGES: ("system", "tools", "messages"),
    Protocol.GENERATE: ("text", "input_ids", "image_data", "audio_data", "video_data"),
    Protocol.OTHER: (),
}  # fmt: skip
"""Every field that changes a prompt's tokens."""

_COMMON_FIELDS = (
    "model", "stream", "n", "cache_salt", "previous_response_id", "session_id", "session_params",
    "prompt_cache_key", "metadata", "user", "sampling_params",
)  # fmt: skip

_ABSENT = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")
_TRUE = msgspec.Raw(b"true")

_Fields: type[Any] = msgspec.defstruct(
    "_Fields",
    [
        (name, msgspec.Raw, _ABSENT)
        for name in dict.fromkeys((*_COMMON_FIELDS, *(n for names in PROMPT_FIELDS.values() for n in names)))
    ],
    gc=False,
)
_decode_fields = msgspec.json.Decoder(_Fields).decode


_S = TypeVar("_S", bound=msgspec.Struct)


class _SessionHolder(msgspec.Struct, gc=False):
    session_id: Any = None


class _SamplingParams(msgspec.Struct, gc=False):
    n: Any = None


def parse_body(body: bytes, endpoint: Endpoint) -> ParsedBody:
    """Read what routing needs. Raises BadRequest for what is no JSON object, and for a `model`, `messages` or
    `prompt` that is missing or of the wrong type.

    JSON that only lenient readers take (engines use one) is routed without a prefix. Where it is too long for
    them here, or nested too deeply, the worker is the judge.
    """
    try:
        fields = _decode_fields(body)
        if not body.isascii():
            body.decode()  # skipped strings are not checked by the pass above
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object: {error}", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_leniently(body, endpoint)
    except RecursionError:
        return _parse_head(body)
    present = {
        name: raw for name in fields.__struct_fields__ if (raw := getattr(fields, name)) and raw != _NULL
    }
    return _from_slices(present, endpoint)


def _from_slices(slices: dict[str, msgspec.Raw], endpoint: Endpoint) -> ParsedBody:
    model = _checked_model(_value_of(slices.get("model")))
    _check_prompt(
        {name: _JSON_KINDS.get(memoryview(raw)[0], "number") for name, raw in slices.items()}, endpoint
    )
    return ParsedBody(
        model=model,
        stream=slices.get("stream") == _TRUE,
        n=_num_choices(_value_of(slices.get("n")), slices.get("sampling_params")),
        prompt={name: slices[name] for name in PROMPT_FIELDS[endpoint.protocol] if name in slices},
        cache_salt=_text(_value_of(slices.get("cache_salt"))) or "",
        session=_session_of(slices),
        user=_text(_value_of(slices.get("user"))),
        previous_response_id=_text(_value_of(slices.get("previous_response_id"))),
    )


def _value_of(raw: msgspec.Raw | None) -> object:
    """The value of a slice; None too where the slice holds what cannot be represented (1e999)."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# What is judged


def _checked_model(value: object) -> str | None:
    """None and the empty string mean that none was named, as for the engines."""
    if value is not None and not isinstance(value, str):
        raise BadRequest(
            f"'model' must be a string, not {_kind_of(value)}", param="model", code="invalid_type"
        )
    return value or None


def _check_prompt(kinds: Mapping[str, str], endpoint: Endpoint) -> None:
    """Is the prompt there, of a type that its protocol knows? `kinds`: JSON type by field, nulls left out."""
    if endpoint.protocol in (Protocol.CHAT, Protocol.MESSAGES):
        _check_field("messages", kinds, ("array",))
    elif endpoint.protocol is Protocol.COMPLETIONS and ("prompt" in kinds or "prompt_embeds" not in kinds):
        _check_field("prompt", kinds, ("string", "array"))


def _check_field(name: str, kinds: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    kind = kinds.get(name)
    if kind is None:
        raise BadRequest(f"'{name}' is required", param=name, code="missing_field")
    if kind not in allowed:
        raise BadRequest(
            f"'{name}' must be {_either(allowed)}, not {_article(kind)}", param=name, code="invalid_type"
        )


_JSON_KINDS = {b'"'[0]: "string", b"["[0]: "array", b"{"[0]: "object", b"t"[0]: "boolean", b"f"[0]: "boolean"}
"""First byte of a JSON text -> its type; any other begins a number (null is left out before)."""

_PYTHON_KINDS = {str: "string", list: "array", dict: "object", bool: "boolean"}


def _kind_of(value: object) -> str:
    return _article(_PYTHON_KINDS.get(type(value), "number"))


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ao" else f"a {kind}"


def _either(kinds: tuple[str, ...]) -> str:
    return " or ".join(_article(kind) for kind in kinds)


# What is only read


def _num_choices(n: object, sampling_params: msgspec.Raw | None) -> int:
    if n is None and sampling_params is not None:
        holder = _decode_or_none(sampling_params, _SamplingParams)
        n = holder.n if holder is not None else None
    return n if type(n) is int and n > 0 else 1


def _session_of(slices: Mapping[str, msgspec.Raw]) -> str | None:
    """The first of the names under which clients send a session."""
    return (
        _text(_value_of(slices.get("session_id")))
        or _held_session(slices.get("session_params"))
        or _text(_value_of(slices.get("prompt_cache_key")))
        or _held_session(slices.get("metadata"))
    )


def _held_session(raw: msgspec.Raw | None) -> str | None:
    holder = _decode_or_none(raw, _SessionHolder) if raw is not None else None
    return _text(holder.session_id) if holder is not None else None


def _decode_or_none(raw: msgspec.Raw, shape: type[_S]) -> _S | None:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, RecursionError):
        return None


# JSON that only lenient readers take


def _parse_leniently(body: bytes, endpoint: Endpoint) -> ParsedBody:
    if len(body) > LENIENT_BYTES:
        return _parse_head(body)
    try:
        value = json.loads(body, parse_int=_bounded_int)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno} (character {error.pos})"
        message = f"Invalid JSON: {error.msg} at {where}" if body else "The body is empty; JSON is expected"
        raise BadRequest(message, code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"Invalid JSON: no valid {error.encoding} at byte {error.start}", code="invalid_json"
        ) from None
    except RecursionError:
        return _parse_head(body)
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object, not {_kind_of(value)}", code="invalid_json")
    present = {name: item for name, item in value.items() if item is not None}
    model = _checked_model(present.get("model"))
    _check_prompt({name: _PYTHON_KINDS.get(type(item), "number") for name, item in present.items()}, endpoint)
    return ParsedBody(
        model=model,
        stream=present.get("stream") is True,
        n=_num_choices(present.get("n"), None),
        previous_response_id=_text(present.get("previous_response_id")),
    )


def _bounded_int(digits: str) -> int:
    """Longer numbers than routing reads are another's to judge; Python refuses to convert the longest."""
    return int(digits) if len(digits) < 20 else 0


_JSON_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_MODEL_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


def _parse_head(body: bytes) -> ParsedBody:
    """Too deep or too long to be read here: the model is looked for among the first top-level keys."""
    depth = 0
    for token in _JSON_TOKENS.finditer(body, 0, MODEL_SEARCH_BYTES):
        text = token.group()
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif (
            depth == 1
            and text == b'"model"'
            and (value := _MODEL_VALUE.match(body, token.end(), MODEL_SEARCH_BYTES))
        ):
            return ParsedBody(model=_text(_value_of(msgspec.Raw(value.group(1)))))
    return ParsedBody()
