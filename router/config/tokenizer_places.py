"""The places of tokenizers and chat templates, tried before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from router.config.errors import Mistake
from router.config.settings import Settings
from router.tokenizer_files import (
    INSTALL,
    NoTokenizer,
    check_tokenizer,
    find_tokenizer,
    missing_packages,
    need_packages,
    read_template,
    split_named,
)

_IDLE = ("engine", "bytes")
"""Values of `tokens` that make none here."""


def tokenizer_mistakes(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    """What is missing, unreadable, or has no effect. `places`: where each option was given."""
    for option, values in (("tokenizer", settings.tokenizer), ("chat_template", settings.chat_template)):
        if values and settings.tokens in _IDLE:
            yield Mistake(places[option], f"has no effect with tokens {settings.tokens}")
        names = Counter(split_named(value)[0] for value in values)
        yield from (
            Mistake(places[option], f"given {count} times for {name or 'all models'}")
            for name, count in names.items()
            if count > 1
        )
    if settings.tokens == "local" or settings.tokenizer:
        try:
            need_packages()
        except NoTokenizer as error:
            yield Mistake(places.get("tokens", places.get("tokenizer", "tokens")), str(error))
    elif settings.chat_template and settings.tokens not in _IDLE and missing_packages():
        what = f"has no effect without {' and '.join(missing_packages())}: {INSTALL}"
        yield Mistake(places["chat_template"], what)
    yield from _unreadable(settings, places)


def _unreadable(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    for option, values, read in (
        ("tokenizer", settings.tokenizer, _look_at_tokenizer),
        ("chat_template", settings.chat_template, read_template),
    ):
        for value in values:
            try:
                read(split_named(value)[1])
            except NoTokenizer as error:
                yield Mistake(places[option], str(error))


def _look_at_tokenizer(place: str) -> None:
    check_tokenizer(find_tokenizer(place).tokenizer)
