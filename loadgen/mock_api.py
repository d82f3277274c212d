"""What clients may ask of a mock worker: bodies of the generation protocols, of `/tokenize` and friends.

Each becomes token ids and limits; the shape of the answers is in `mock_answers`. No sockets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from loadgen.tokenizer import VOCABULARY_SIZE, detokenize, render_chat, tokenize

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions; the mock uses it for every protocol."""


class ApiError(Exception):
    """A refusal in vLLM's error shape."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class TextPart(msgspec.Struct):
    type: str = "text"
    text: str = ""


Content = str | list[TextPart] | None


class Message(msgspec.Struct):
    role: str
    content: Content = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class HandOverFields(msgspec.Struct, kw_only=True):
    """What only a gateway sends: vLLM's parameters, SGLang's meeting place (lists have one entry, as the mock
    answers one prompt) and ranks."""

    kv_transfer_params: dict[str, Any] | None = None
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None
    routed_dp_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None

    @property
    def host(self) -> str | None:
        return self.bootstrap_host[0] if isinstance(self.bootstrap_host, list) else self.bootstrap_host

    @property
    def port(self) -> int | None:
        return self.bootstrap_port[0] if isinstance(self.bootstrap_port, list) else self.bootstrap_port

    @property
    def room(self) -> int | None:
        return self.bootstrap_room[0] if isinstance(self.bootstrap_room, list) else self.bootstrap_room


class ChatBody(HandOverFields):
    messages: list[Message]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    add_generation_prompt: bool = True


class CompletionBody(HandOverFields):
    prompt: str | list[int | str]
    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    add_special_tokens: bool = True


class ResponsesBody(msgspec.Struct):
    input: str | list[Message]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None


class MessagesBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    system: Content = None
    max_tokens: int | None = None
    stream: bool | None = None


class SamplingParams(msgspec.Struct):
    max_new_tokens: int | None = None


class GenerateBody(HandOverFields):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    stream: bool | None = None
    cache_salt: str | None = None


class TokenizeBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class EmbeddingsBody(msgspec.Struct):
    input: str | list[str]
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt ready for the engine."""

    model: str | None
    token_ids: list[int]
    max_tokens: int | None
    """None when the client set no limit."""
    stream: bool
    include_usage: bool = False
    cache_salt: str = ""
    hand_over: HandOverFields = field(default_factory=HandOverFields)


BodyT = TypeVar("BodyT")


def decode(body: bytes, kind: type[BodyT]) -> BodyT:
    """Raises ApiError 400 that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"1 validation error:\n  {error}", kind="Bad Request", param="body") from error


def parse_chat(body: bytes) -> GenerationRequest:
    chat = decode(body, ChatBody)
    return GenerationRequest(
        model=chat.model,
        token_ids=_chat_tokens(chat.messages, add_generation_prompt=chat.add_generation_prompt),
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        stream=bool(chat.stream),
        include_usage=chat.stream_options is not None and chat.stream_options.include_usage,
        cache_salt=chat.cache_salt or "",
        hand_over=chat,
    )


def parse_completion(body: bytes) -> GenerationRequest:
    completion = decode(body, CompletionBody)
    return GenerationRequest(
        model=completion.model,
        token_ids=_completion_tokens(completion),
        max_tokens=completion.max_tokens,
        stream=bool(completion.stream),
        include_usage=completion.stream_options is not None and completion.stream_options.include_usage,
        cache_salt=completion.cache_salt or "",
        hand_over=completion,
    )


def parse_responses(body: bytes) -> GenerationRequest:
    responses = decode(body, ResponsesBody)
    given = responses.input
    messages = [Message("user", given)] if isinstance(given, str) else given
    if responses.instructions:
        messages = [Message("system", responses.instructions), *messages]
    return GenerationRequest(
        model=responses.model,
        token_ids=_chat_tokens(messages),
        max_tokens=responses.max_output_tokens,
        stream=bool(responses.stream),
    )


def parse_messages(body: bytes) -> GenerationRequest:
    parsed = decode(body, MessagesBody)
    messages = [Message("system", parsed.system), *parsed.messages] if parsed.system else parsed.messages
    return GenerationRequest(
        model=parsed.model,
        token_ids=_chat_tokens(messages),
        max_tokens=parsed.max_tokens,
        stream=bool(parsed.stream),
    )


def parse_generate(body: bytes) -> GenerationRequest:
    """SGLang's own protocol; it names no model."""
    wanted = decode(body, GenerateBody)
    if (wanted.text is None) == (wanted.input_ids is None):
        raise ApiError(400, "either text or input_ids must be given", param="text")
    return GenerationRequest(
        model=None,
        token_ids=tokenize(wanted.text) if wanted.text is not None else _checked_ids(wanted.input_ids or []),
        max_tokens=wanted.sampling_params.max_new_tokens,
        stream=bool(wanted.stream),
        cache_salt=wanted.cache_salt or "",
        hand_over=wanted,
    )


def tokens_of(body: TokenizeBody) -> list[int]:
    """Exactly what the generation paths would compute for the same prompt or messages."""
    if body.messages is not None:
        return _chat_tokens(body.messages, add_generation_prompt=body.add_generation_prompt)
    if body.prompt is None:
        raise ApiError(400, "either prompt or messages must be given", kind="Bad Request", param="prompt")
    return tokenize(body.prompt, add_bos=body.add_special_tokens)


def text_of_tokens(body: DetokenizeBody) -> str:
    return detokenize(_checked_ids(body.tokens))


def _chat_tokens(messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
    if not messages:
        raise ApiError(400, "messages must not be empty", kind="Bad Request", param="messages")
    conversation = [(message.role, _text(message.content)) for message in messages]
    return render_chat(conversation, add_generation_prompt=add_generation_prompt)


def _text(content: Content) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


def _completion_tokens(completion: CompletionBody) -> list[int]:
    prompt = completion.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokenize(prompt, add_bos=completion.add_special_tokens)
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) != len(prompt):
        raise ApiError(400, "the mock answers one prompt a request", kind="Bad Request", param="prompt")
    return _checked_ids(token_ids)


def _checked_ids(token_ids: list[int]) -> list[int]:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < VOCABULARY_SIZE):
        raise ApiError(400, "token id out of vocabulary", param="prompt")
    return token_ids
