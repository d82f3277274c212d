"""Where a text may be cut so that its pieces, encoded alone, give the tokens of the whole.

Proved from the tokenizer's own description, or not cut at all. A Hugging Face tokenizer works in this order:

1. It finds the added tokens that are not `normalized` in the raw text: leftmost first, of those the longest.
   One with `single_word` is passed over where it touches a word; `lstrip` and `rstrip` take blanks along.
2. Each piece between them is normalized by itself, and searched for the added tokens that are `normalized`.
3. Each piece that is left goes through the pre-tokenizer and the model by itself.
4. The post-processor puts special tokens around the whole, which `router.tokens.local.loading` looks after.

So a piece between tokens of step 1 is independent of the rest, unless a part looks at where it stands, or a
neighbour's flag reaches into it. The cuts are the tokens of step 1 that have no flag; parts are taken only
from the lists below. Names and rules as in tokenizers 0.13 to 0.23.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Part = Mapping[str, Any]
"""A normalizer, pre-tokenizer or post-processor as tokenizer.json describes it."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An entry of `added_tokens`."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False

    @property
    def has_flags(self) -> bool:
        return self.single_word or self.lstrip or self.rstrip


@dataclass(frozen=True, slots=True)
class Cuts:
    """`ids`: the tokens at which a text is cut. `lead` goes before each piece but the first, and its one
    token is dropped again: where a pre-tokenizer asks whether a piece begins the text. "" where none does."""

    ids: Mapping[str, int]
    lead: str
    _pattern: re.Pattern[str]

    def pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in order: (piece, None) for what is to be encoded, (token, its id) for a cut."""
        start = 0
        ids = self.ids
        for match in self._pattern.finditer(text):
            token = ids.get(match.group())
            if token is None:
                continue  # found, but no cut: it belongs to its piece
            if match.start() > start:
                yield text[start : match.start()], None
            yield match.group(), token
            start = match.end()
        if start < len(text):
            yield text[start:], None


def cuts_of(
    added: Sequence[AddedToken], *, normalizer: Part | None, pre_tokenizer: Part | None, model: str
) -> Cuts | None:
    """The cuts that are exact for such a tokenizer; None where none can be shown to be."""
    raw = [token for token in added if not token.normalized and token.content]
    ids = {token.content: token.id for token in raw if _is_cut(token, raw)}
    if not ids or model not in _MODELS:
        return None
    if not all(part.get("type") in _NORMALIZERS for part in _flat(normalizer, "normalizers")):
        return None
    parts = list(_flat(pre_tokenizer, "pretokenizers"))
    if not all(part.get("type") in _PRE_TOKENIZERS for part in parts):
        return None
    lead = next(iter(ids)) if any(map(_asks_for_the_beginning, parts)) else ""
    contents = sorted((token.content for token in raw), key=len, reverse=True)
    return Cuts(ids, lead, re.compile("|".join(map(re.escape, contents))))


def _is_cut(token: AddedToken, raw: Sequence[AddedToken]) -> bool:
    """Whether no flag, its own or a neighbour's, looks over the token's edges. Blanks that a neighbour strips
    are no matter: those of a token that was found stay its own."""
    if token.has_flags:
        return False
    if any(other.single_word for other in raw):
        edges = (token.content[0], token.content[-1])
        return all(edge in string.punctuation and edge != "_" for edge in edges)
    return True


def _flat(part: Part | None, members: str) -> Iterator[Part]:
    if part is None:
        return
    if part.get("type") == "Sequence":
        inner: Iterable[Part] = part[members]
        for each in inner:
            yield from _flat(each, members)
    else:
        yield part


def _asks_for_the_beginning(part: Part) -> bool:
    return part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first"


_MODELS = frozenset({"BPE", "WordPiece", "WordLevel", "Unigram"})

_NORMALIZERS = frozenset({
    "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
    "Replace", "Strip", "StripAccents",
})  # fmt: skip
"""Each sees one piece at a time; what stands around it is no part of its input."""

_PRE_TOKENIZERS = frozenset({
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace",
    "Punctuation", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
"""As above, but for a Metaspace that prepends to the first piece only: see `Cuts.lead`."""
