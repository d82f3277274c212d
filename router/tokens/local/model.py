"""One model's tokenizer and chat templates at work: from the prompt's fields in a body to a text, and to
tokens.

The arguments of a template come together as vLLM 0.32 merges them: a body's own fields win over its
`chat_template_kwargs`, whatever is null counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from router.tokenizer_files import NoTokenizer, TokenizerFiles
from router.tokens.local import plain_json
from router.tokens.local.conversation import Manner, prepare_messages, prepare_tools, without_developers
from router.tokens.local.encoder import Encoder
from router.tokens.local.loading import load_encoder, special_tokens_of
from router.tokens.local.segments import SegmentCache
from router.tokens.local.templates import ChatTemplate
from router.tokens.prompts import PromptBatch
from router.tokens.refusals import NoTokens
from router.wire.openai import Slices

_decode_text = msgspec.json.Decoder(str).decode


class LocalModel:
    """`encoder` and the texts for it."""

    def __init__(
        self,
        encoder: Encoder,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`templates`: chat templates by name, "default" and perhaps "tool_use". Raises NoTokenizer."""
        self.encoder = encoder
        self._special_tokens = dict(special_tokens)
        self._templates = {name: ChatTemplate(source, now=now) for name, source in templates.items()}

    @property
    def has_template(self) -> bool:
        return "default" in self._templates

    def describe(self) -> str:
        """What it can do, in words."""
        chats = "chats and texts" if self.has_template else "texts (no chat template)"
        cuts = self.encoder.cuts
        reuse = f"cut at {len(cuts.ids)} special tokens" if cuts is not None else "each as a whole"
        return f"{chats}, {reuse}"

    def text(self, batch: PromptBatch | None, prompt: Slices, manner: Manner) -> str:
        """The text of a batch's first prompt, or of the chat in `prompt`. Raises NoTokens."""
        if batch is None:
            return self._chat_text(prompt, manner)
        return _decode_text(batch.first)

    @staticmethod
    def wants_special_tokens(prompt: Slices, *, default: bool) -> bool:
        """What a body says of BOS and its like; chats have them in their template."""
        given = _value(prompt, "add_special_tokens")
        return given if isinstance(given, bool) else default

    def _chat_text(self, prompt: Slices, manner: Manner) -> str:
        if "chat_template" in prompt:  # engines refuse it unless told to trust it, and here it is not run
            raise NoTokens("template")
        tools = prepare_tools(_value(prompt, "tools"), manner)
        template = (self._templates.get("tool_use") if tools else None) or self._templates.get("default")
        if template is None:
            raise NoTokens("no_template")
        messages = prepare_messages(_value(prompt, "messages"), template.content_format, manner)
        if not template.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = without_developers(messages)
        return template.render(messages, tools, self._special_tokens | _variables(prompt))


def load_model(
    files: TokenizerFiles, template: str | None, segments: SegmentCache, *, now: Callable[[], datetime]
) -> LocalModel:
    """From files; `template` stands in for theirs. Holds the interpreter for up to 0.7 s. Raises
    NoTokenizer."""
    try:
        raw = files.tokenizer.read_bytes()
    except OSError as error:
        raise NoTokenizer(f"can't read {files.tokenizer}: {error.strerror or error}") from None
    try:
        encoder = load_encoder(raw, files.config, segments)
    except NoTokenizer as error:
        raise NoTokenizer(f"{files.tokenizer}: {error}") from None
    templates = files.templates if template is None else {"default": template}
    return LocalModel(encoder, templates, special_tokens_of(files.config), now=now)


def _variables(prompt: Slices) -> dict[str, Any]:
    given = _value(prompt, "chat_template_kwargs")
    variables = dict(given) if isinstance(given, dict) else {}
    if not _RESERVED.isdisjoint(variables):
        raise NoTokens("template")
    effort = _value(prompt, "reasoning_effort")
    if effort is not None:
        variables.setdefault("enable_thinking", effort != "none")
    fields = {
        "documents": _value(prompt, "documents"),
        "reasoning_effort": effort,
        "add_generation_prompt": _value(prompt, "add_generation_prompt", True),
        "continue_final_message": _value(prompt, "continue_final_message", False),
    }
    variables |= {name: value for name, value in fields.items() if not _is_unset(value)}
    return {name: value for name, value in variables.items() if not _is_unset(value)}


_RESERVED = frozenset({"chat_template", "tokenize", "messages", "conversation"})
"""Arguments that the engine refuses in a body's `chat_template_kwargs`."""


def _is_unset(value: object) -> bool:
    return value is None or value == "auto"


def _value(prompt: Slices, name: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever the client sent
    raw = prompt.get(name)
    if raw is None:
        return default
    try:
        return plain_json.read(bytes(raw))
    except (ValueError, RecursionError):
        raise NoTokens("template") from None
