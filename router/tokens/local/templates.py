"""Chat templates: compiled once, rendered in a sandbox as transformers and the engines render them.

The sandbox's settings, filters and globals are those that templates are written for: blocks trimmed, loop
controls, a `tojson` that escapes no HTML and keeps non-ASCII text, `raise_exception`, `strftime_now` and the
`generation` tag. What a conversation looks like is the business of `router.tokens.local.conversation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node, Template
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.tokenizer_files import NoTokenizer
from router.tokens.local import plain_json
from router.tokens.local.content_format import content_format_of
from router.tokens.refusals import NoTokens

Message = dict[str, Any]


class ChatTemplate:
    """One template. `content_format` and `knows_developer` say what its conversations must look like."""

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """`now`: local time, for templates that print the date. Raises NoTokenizer."""
        environment = _environment(now)
        try:
            tree: Template = environment.parse(source)
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise NoTokenizer(f"the chat template can't be compiled: {error}") from None
        self._source = source
        self.content_format = content_format_of(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> str:
        """The text of a conversation. Raises NoTokens("template") where the template refuses or fails."""
        arguments = dict(variables)
        goes_on = arguments.pop("continue_final_message", False)
        if goes_on:
            if arguments.get("add_generation_prompt"):
                raise NoTokens("template")
            return self._continued(messages, tools, arguments)
        return self._rendered(messages, tools, arguments)

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> str:
        defaults = {"tools": tools, "documents": None, "add_generation_prompt": False}
        try:
            return self._template.render(defaults | dict(variables) | {"messages": messages})
        except _FAILURES as error:
            raise NoTokens("template", str(error)) from None

    def _continued(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> str:
        """Rendered with a mark behind the last message, and cut at the mark: the model goes on from there."""
        *others, last = messages
        marked, text = _marked(last)
        if "content" not in self._source:
            raise NoTokens("template")
        rendered = self._rendered([*others, marked], tools, variables)
        end = rendered.rfind(_MARK.strip())
        if end < 0 or text.strip() not in rendered:
            raise NoTokens("template")
        keeps_blanks = rendered.startswith(_MARK, end)
        return rendered[:end] if keeps_blanks else rendered[:end].rstrip()


_FAILURES = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What a template can raise over a conversation that it was not written for."""

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""The text that transformers puts there: its blank tells whether the template strips messages."""


def _marked(message: Message) -> tuple[Message, str]:
    """The message with the mark behind its last text, and that text."""
    content = message.get("content")
    if isinstance(content, str):
        return message | {"content": content + _MARK}, content
    parts = list(content) if isinstance(content, list) else []
    for index in reversed(range(len(parts))):
        text = parts[index].get("text")
        if isinstance(text, str):
            parts[index] = parts[index] | {"text": text + _MARK}
            return message | {"content": parts}, text
    raise NoTokens("template")


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = plain_json.write
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; to a prompt its body is plain text. It has a
    scope of its own, as a macro's."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()
