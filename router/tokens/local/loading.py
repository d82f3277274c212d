"""A tokenizer set up from its files as transformers sets it up: `Encoder`s come from here.

tokenizer.json describes the tokenizer, tokenizer_config.json may add tokens to it. Where releases of
transformers differ, this follows 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer

from indexer.blocks import pack_tokens
from router.tokenizer_files import NoTokenizer
from router.tokens.local.cutting import AddedToken, Cuts, cuts_of
from router.tokens.local.encoder import Encoder
from router.tokens.local.segments import SegmentCache

_NAMED_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip


class _Model(msgspec.Struct):
    type: str = ""
    dropout: float | None = None


class _Description(msgspec.Struct):
    """What of a tokenizer.json decides about cuts; its vocabulary is skipped."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None


def load_encoder(raw: bytes, config: Mapping[str, Any], segments: SegmentCache) -> Encoder:
    """The encoder that a tokenizer.json and a tokenizer_config.json describe. Raises NoTokenizer.

    Takes 0.1 to 0.7 s in which the interpreter is held, in whichever thread it runs.
    """
    try:
        description = msgspec.json.decode(raw, type=_Description)
        tokenizer = Tokenizer.from_buffer(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoTokenizer(f"no tokenizer.json: {error}") from None
    except Exception as error:  # the library has no kinds of errors
        raise NoTokenizer(f"tokenizers can't read it: {error}") from None
    if description.model.dropout:
        raise NoTokenizer("its model drops merges at random, so equal texts have unequal tokens")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
    if added := list(_tokens_to_add(tokenizer, config)):
        tokenizer.add_tokens(added)
    return Encoder(tokenizer, _cuts(tokenizer, description), _affixes(tokenizer, description), segments)


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of BOS, EOS and their like, as chat templates see them."""
    named = ((name, _content_of(config.get(name))) for name in _NAMED_TOKENS)
    return {name: content for name, content in named if content}


def _content_of(token: object) -> str | None:
    """Configurations write tokens as texts, or as objects with flags."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _tokens_to_add(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Iterator[LibraryToken]:
    """Tokens that only the configuration knows, or that it knows with other flags."""
    present = tokenizer.get_added_tokens_decoder().values()
    known = {token.content for token in present}
    as_they_are = {repr(token) for token in present}
    listed = config.get("added_tokens_decoder")
    rows = listed.items() if isinstance(listed, dict) else ()
    for _, row in sorted((row for row in rows if row[0].isdecimal()), key=lambda row: int(row[0])):
        token = _library_token(row)
        if token is not None and repr(token) not in as_they_are:
            known.add(token.content)
            yield token
    for name in _NAMED_TOKENS:
        token = _library_token(config.get(name), special=True)
        if token is not None and token.content not in known:
            known.add(token.content)
            yield token


def _library_token(row: object, **flags: bool) -> LibraryToken | None:
    content = _content_of(row)
    if not content:
        return None
    if isinstance(row, dict):
        given = {name: row[name] for name in _FLAGS if isinstance(row.get(name), bool)}
        flags = given | flags
    return LibraryToken(content, **flags)


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _cuts(tokenizer: Tokenizer, description: _Description) -> Cuts | None:
    if tokenizer.encode_special_tokens:
        return None  # a special token in a text is text
    return cuts_of(
        _added_tokens(tokenizer),
        normalizer=description.normalizer,
        pre_tokenizer=description.pre_tokenizer,
        model=description.model.type,
    )


def _added_tokens(tokenizer: Tokenizer) -> Sequence[AddedToken]:
    return [
        AddedToken(id, token.content, token.single_word, token.lstrip, token.rstrip, token.normalized)
        for id, token in tokenizer.get_added_tokens_decoder().items()
    ]


def _affixes(tokenizer: Tokenizer, description: _Description) -> tuple[bytes, bytes]:
    """Packed ids that the post-processor puts before and after a text that asks for special tokens.

    The configuration's `add_bos_token` does not count beside a tokenizer.json in transformers 5.
    """
    plain, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return pack_tokens(whole[:start]), pack_tokens(whole[start + len(plain) :])
    raise NoTokenizer(f"its post-processor changes the text itself: {description.post_processor}")
