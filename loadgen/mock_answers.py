"""The bytes that a mock worker answers with, in the shapes that vLLM 0.32 was recorded with, and in SGLang's.

One class per protocol, one instance per request. A stream is `opening`, one `token` per generated token and
`closing`; every event is one HTTP chunk, as vLLM's are. A token's event is made by joining three byte
strings, because at full speed the mock writes tens of thousands a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from loadgen.tokenizer import TOKEN_TEXT

DONE = b"data: [DONE]\n\n"
_TOKEN_BYTES = len(TOKEN_TEXT[0])
_MARK = "\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`cached_tokens` is None where the engine version leaves the details out."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    def openai(self) -> dict[str, Any]:
        details = None if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
        }


class Answer(Protocol):
    """One request's answer. `text` is always one of TOKEN_TEXT in `token`, and all of them joined in
    `body`."""

    id: str

    def opening(self) -> bytes:
        """Events that come with the first token."""
        ...

    def token(self, text: str, finish_reason: str | None) -> bytes: ...

    def closing(self, usage: Usage, text: str) -> bytes:
        """Events behind the last token."""
        ...

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        """The whole answer of a request that did not ask for a stream."""
        ...


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event as one HTTP chunk."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return chunk(b"%sdata: %s\n\n" % (head, msgspec.json.encode(data)))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class _TokenTemplate:
    """An event around a token's text. All texts have one length, so the chunk size is known beforehand."""

    def __init__(self, data: object, name: str | None = None) -> None:
        """`data` holds _MARK where the text goes."""
        filled = event(data, name)
        before, after = filled.split(msgspec.json.encode(_MARK)[1:-1])
        size_line, payload = before.split(b"\r\n", 1)
        del size_line
        size = len(payload) + _TOKEN_BYTES + len(after) - 2
        self._before = b"%x\r\n%s" % (size, payload)
        self._after = after

    def fill(self, text: str) -> bytes:
        return b"".join((self._before, text.encode(), self._after))


class _OpenAiAnswer:
    """What chat and completions share."""

    prefix: str
    chunk_object: str

    def __init__(self, request_id: str, model: str, created: int, *, include_usage: bool) -> None:
        self.id = f"{self.prefix}-{request_id}"
        self.model = model
        self.created = created
        self.include_usage = include_usage
        self._template = _TokenTemplate(self._token_data(_MARK, None))

    def token(self, text: str, finish_reason: str | None) -> bytes:
        if finish_reason is None:
            return self._template.fill(text)
        return event(self._token_data(text, finish_reason))

    def closing(self, usage: Usage, text: str) -> bytes:
        if not self.include_usage:
            return chunk(DONE)
        return event(self._head(self.chunk_object) | {"choices": [], "usage": usage.openai()}) + chunk(DONE)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _token_data(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return self._head(self.chunk_object) | {"choices": [self._token_choice(text, finish_reason)]}

    def _token_choice(self, text: str, finish_reason: str | None) -> Mapping[str, Any]:
        raise NotImplementedError

    def _body(self, kind: str, choice: Mapping[str, Any], usage: Usage) -> bytes:
        return msgspec.json.encode(self._head(kind) | {"choices": [choice], "usage": usage.openai()})


class ChatAnswer(_OpenAiAnswer):
    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return event(self._head(self.chunk_object) | {"choices": [choice], "prompt_token_ids": None})

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        message = {"role": "assistant", "content": text, "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return self._body("chat.completion", choice, usage)

    def _token_choice(self, text: str, finish_reason: str | None) -> Mapping[str, Any]:
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
        return choice if finish_reason is None else choice | {"stop_reason": None}


class CompletionAnswer(_OpenAiAnswer):
    prefix = "cmpl"
    chunk_object = "text_completion"

    def opening(self) -> bytes:
        return b""

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        return self._body("text_completion", self._token_choice(text, finish_reason), usage)

    def _token_choice(self, text: str, finish_reason: str | None) -> Mapping[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }


class ResponsesAnswer:
    """OpenAI's Responses protocol: named events with a running number."""

    def __init__(self, request_id: str, model: str, created: int, *, include_usage: bool) -> None:
        del include_usage  # always there
        self.id = f"resp_{request_id}"
        self.model = model
        self.created = created
        self._item_id = f"msg_{request_id}"
        self._number = -1

    def opening(self) -> bytes:
        return b"".join(
            (
                self._event("response.created", {"response": self._response("in_progress", [], None)}),
                self._event(
                    "response.output_item.added", {"output_index": 0, "item": self._item("", "in_progress")}
                ),
                self._event("response.content_part.added", self._place() | {"part": _output_text("")}),
            )
        )

    def token(self, text: str, finish_reason: str | None) -> bytes:
        return self._event("response.output_text.delta", self._place() | {"delta": text, "logprobs": []})

    def closing(self, usage: Usage, text: str) -> bytes:
        item = self._item(text, "completed")
        return b"".join(
            (
                self._event("response.output_text.done", self._place() | {"text": text, "logprobs": []}),
                self._event("response.content_part.done", self._place() | {"part": _output_text(text)}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event("response.completed", {"response": self._response("completed", [item], usage)}),
            )
        )

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        return msgspec.json.encode(self._response("completed", [self._item(text, "completed")], usage))

    def _event(self, kind: str, data: Mapping[str, Any]) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **data}, kind)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, text: str, status: str) -> dict[str, Any]:
        content = [_output_text(text)] if text else []
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if usage is None else _responses_usage(usage),
        }


class MessagesAnswer:
    """Anthropic's Messages protocol."""

    def __init__(self, request_id: str, model: str, created: int, *, include_usage: bool) -> None:
        del created, include_usage  # no field for the one, always there the other
        self.id = f"msg_{request_id}"
        self.model = model
        delta = {"type": "text_delta", "text": _MARK}
        data = {"type": "content_block_delta", "index": 0, "delta": delta}
        self._template = _TokenTemplate(data, "content_block_delta")

    def opening(self) -> bytes:
        usage = {"input_tokens": 0, "output_tokens": 0}
        block = {"type": "text", "text": ""}
        return _named("message_start", message=self._message([], None, usage)) + _named(
            "content_block_start", index=0, content_block=block
        )

    def token(self, text: str, finish_reason: str | None) -> bytes:
        return self._template.fill(text)

    def closing(self, usage: Usage, text: str) -> bytes:
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        return b"".join(
            (
                _named("content_block_stop", index=0),
                _named("message_delta", delta=delta, usage=_messages_usage(usage)),
                _named("message_stop"),
            )
        )

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        content = [{"type": "text", "text": text}]
        return msgspec.json.encode(self._message(content, "max_tokens", _messages_usage(usage)))

    def _message(
        self, content: list[dict[str, Any]], stop_reason: str | None, usage: object
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }


class GenerateAnswer:
    """SGLang's own protocol: every event of a stream repeats the text so far."""

    def __init__(self, request_id: str, model: str, created: int, *, include_usage: bool) -> None:
        del model, created, include_usage  # no fields for these
        self.id = request_id
        self._text = ""

    def opening(self) -> bytes:
        return b""

    def token(self, text: str, finish_reason: str | None) -> bytes:
        self._text += text
        if finish_reason is not None:
            return b""  # the last event has the counts, and comes with them
        return event({"text": self._text, "meta_info": {"id": self.id, "finish_reason": None}})

    def closing(self, usage: Usage, text: str) -> bytes:
        return event(self._content(text, usage, "length")) + chunk(DONE)

    def body(self, text: str, usage: Usage, finish_reason: str) -> bytes:
        return msgspec.json.encode(self._content(text, usage, finish_reason))

    def _content(self, text: str, usage: Usage, finish_reason: str) -> dict[str, Any]:
        meta_info = {
            "id": self.id,
            "finish_reason": {"type": finish_reason, "length": usage.completion_tokens},
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens or 0,
        }
        return {"text": text, "meta_info": meta_info}


def _named(kind: str, **data: object) -> bytes:
    return event({"type": kind, **data}, kind)


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _messages_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens or 0,
    }
