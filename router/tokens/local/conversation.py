"""Messages and tools of a chat body, as an engine hands them to a chat template.

Two manners. `Manner.PLAIN` keeps what the client sent, as transformers does, with call arguments parsed.
`Manner.VLLM` is vLLM 0.32's: known fields only, its order of keys (templates that print a whole call show
it), contents in the template's format, developer messages as system ones where the template knows no
developers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from router.tokens.local import plain_json
from router.tokens.refusals import NoTokens

Message = dict[str, Any]
Json = Any  # what a client may send


class ContentFormat(StrEnum):
    """What a template takes as a message's `content`."""

    STRING = "string"
    """Its text parts, joined by newlines."""
    PARTS = "openai"
    """A list of parts, each a mapping with a `type`."""


class Manner(StrEnum):
    """Whose preparation of messages is followed."""

    PLAIN = "plain"
    VLLM = "vllm"


def prepare_messages(messages: Json, content_format: ContentFormat, manner: Manner) -> list[Message]:
    """The conversation for a template. Raises NoTokens("template") for what no engine takes."""
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise NoTokens("template")
    if manner is Manner.VLLM:
        return [_vllm_message(message, content_format) for message in messages]
    return [_plain_message(message, content_format) for message in messages]


def prepare_tools(tools: Json, manner: Manner) -> list[Json] | None:
    """The tools for a template; None where there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise NoTokens("template")
    return [_vllm_tool(tool) for tool in tools] if manner is Manner.VLLM else tools


def without_developers(messages: Sequence[Message]) -> list[Message]:
    """Developer messages as system messages, and all system messages as one that begins the conversation."""
    renamed = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    systems = [message for message in renamed if message["role"] == "system"]
    if not systems or (len(systems) == 1 and renamed[0] is systems[0]):
        return renamed
    texts = (_text_of(message["content"], "\n") for message in systems)
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _is_message(message: Json) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


# As the client sent it


def _plain_message(message: Message, content_format: ContentFormat) -> Message:
    """Null contents are empty ones: some templates fail over the others."""
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list):
        parts = _text_parts(content)
        content = content if content_format is ContentFormat.PARTS else _text_of(parts, "\n")
    prepared = message | {"content": content}
    if calls := message.get("tool_calls"):
        prepared["tool_calls"] = [_with_parsed_arguments(call) for call in _calls(calls)]
    return prepared


# As vLLM


def _vllm_message(message: Message, content_format: ContentFormat) -> Message:
    role = message["role"]
    prepared: Message = {"role": role, "content": _vllm_content(message, content_format)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            prepared["tool_calls"] = [_vllm_call(call) for call in _calls(calls)]
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            prepared |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool" and "tool_call_id" in message:
        prepared["tool_call_id"] = message["tool_call_id"]
    prepared |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    if role == "developer":
        prepared["tools"] = message.get("tools")
    return prepared


def _vllm_content(message: Message, content_format: ContentFormat) -> str | list[Json]:
    role, content = message["role"], message.get("content")
    given: list[Json] = [] if content is None else [content] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise NoTokens("template")
    parts = _text_parts(_without_billing(given) if role == "system" else given)
    if content_format is ContentFormat.STRING or (role == "tool" and not any(map(_is_reference, parts))):
        return _text_of(parts, "\n")
    return parts


_BILLING = "x-anthropic-billing-header"


def _without_billing(parts: list[Json]) -> list[Json]:
    """System texts without the line that a Messages API client begins them with, new in every request."""
    kept: list[Json] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(_BILLING):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(part | {"text": rest} if isinstance(part, dict) else rest)
    return kept


def _vllm_call(call: Message) -> Message:
    ordered = _ordered(_with_parsed_arguments(call), ("id", "function", "type"))
    return ordered | {"function": _ordered(ordered["function"], ("arguments", "name"))}


def _ordered(mapping: Message, first: Sequence[str]) -> Message:
    """The keys that `first` names in its order, then the others in theirs."""
    return {key: mapping[key] for key in first if key in mapping} | mapping


def _vllm_tool(tool: Json) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NoTokens("template")
    deferred = tool.get("defer_loading")
    within = function.get("defer_loading")
    optional = {"strict": function.get("strict"), "defer_loading": deferred if within is None else within}
    described = {key: function.get(key) for key in ("name", "description", "parameters")}
    described |= {key: value for key, value in optional.items() if value is not None}
    return {"type": "function", "function": described} | (
        {} if deferred is None else {"defer_loading": deferred}
    )


# What both do


def _calls(calls: Json) -> list[Message]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise NoTokens("template")
    if not all(isinstance(call.get("function"), dict) for call in calls):
        raise NoTokens("template")
    return calls


def _with_parsed_arguments(call: Message) -> Message:
    function: Message = call["function"]
    return call | {"function": function | {"arguments": _parsed(function.get("arguments"))}}


def _parsed(arguments: Json) -> Mapping[str, Json]:
    """Arguments as a mapping; what is none, or cannot be read, is an empty one."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = plain_json.read(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


_TEXT_FIELDS: Mapping[str, str] = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking",
}  # fmt: skip
"""Types of parts that are text, and where they have it."""

_PART_FIELDS = frozenset({"type", "text", "refusal", "thinking", "closed", "name", "uuid"})
"""Fields of parts that an engine reads; others stay with the part, for the template."""


def _text_parts(content: list[Json]) -> list[Message]:
    """Parts of one kind: {"type": "text", "text": ...} and whatever else the client put there."""
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        kind = str(part.get("type", "text")) if isinstance(part, dict) else ""
        if kind == "tool_reference":
            parts.append({"type": kind, "name": part.get("name")})
            continue
        if kind not in _TEXT_FIELDS:
            raise NoTokens("media")
        text = part.get(_TEXT_FIELDS[kind])
        if text is None and kind in ("text", "refusal"):
            continue
        if not isinstance(text, str):
            raise NoTokens("template")
        extra = {key: value for key, value in part.items() if key not in _PART_FIELDS}
        parts.append({"type": "text", "text": text} | extra)
    return parts


def _is_reference(part: Message) -> bool:
    return bool(part["type"] == "tool_reference")


def _text_of(content: str | list[Message], separator: str) -> str:
    """A content as one text; empty parts vanish, as they do in vLLM."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") or part.get("name") or "" for part in content)
    return separator.join(text for text in texts if text)
