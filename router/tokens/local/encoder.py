"""Texts to packed token ids, encoding only what was not encoded before.

Which cuts are exact is shown in `router.tokens.local.cutting`; a tokenizer is set up in
`router.tokens.local.loading`. Only `Encoding.fill` may run in a thread: the cache belongs to the event loop.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from tokenizers import Tokenizer

from indexer.blocks import pack_tokens
from router.tokens.local.cutting import Cuts
from router.tokens.local.segments import SegmentCache
from router.tokens.refusals import NoTokens

# One prompt is one task: the threads that the encoder would start for a batch belong to others.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_spaces = itertools.count()


class Encoding:
    """One text on its way to token ids. `missing` are its pieces that were never encoded, each once."""

    __slots__ = ("_encoder", "_pieces", "missing")

    def __init__(self, encoder: Encoder, pieces: list[bytes | Piece]) -> None:
        self._encoder = encoder
        self._pieces = pieces
        """In order: packed ids, or what is still to be encoded."""
        self.missing: dict[Piece, bytes] = {piece: b"" for piece in pieces if not isinstance(piece, bytes)}

    @property
    def num_missing_characters(self) -> int:
        return sum(len(text) for _, text in self.missing)

    def fill(self) -> None:
        """Encode what is missing; the interpreter is let go meanwhile. Touches nothing but this object."""
        self.missing = {piece: self._encoder.encode_piece(piece) for piece in self.missing}

    def packed(self) -> bytes:
        """All ids, packed; what was missing is remembered for the next text."""
        for (space, text), ids in self.missing.items():
            self._encoder.segments.put(space, text, ids)
        return b"".join(
            [piece if isinstance(piece, bytes) else self.missing[piece] for piece in self._pieces]
        )


Piece = tuple[int, str]
"""A text to be encoded and the space of the cache that says how: as the text's beginning, or behind a cut."""


class Encoder:
    """A tokenizer, where its texts may be cut, and what it puts around a text that asks for special
    tokens."""

    def __init__(
        self, tokenizer: Tokenizer, cuts: Cuts | None, affixes: tuple[bytes, bytes], segments: SegmentCache
    ) -> None:
        self.cuts = cuts
        self.segments = segments
        self._tokenizer = tokenizer
        self._prefix, self._suffix = affixes
        self._lead = cuts.lead if cuts is not None else ""
        self._first_space = next(_spaces)
        self._later_space = next(_spaces) if self._lead else self._first_space
        tokens = cuts.ids.values() if cuts is not None else ()
        self._packed = {token: pack_tokens([token]) for token in tokens}

    def start(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """Cut a text and look its pieces up. Raises NoTokens for what is no text: a lone surrogate."""
        try:
            pieces = self._looked_up(text)
        except UnicodeEncodeError:
            raise NoTokens("text") from None
        if add_special_tokens:
            pieces = [self._prefix, *pieces, self._suffix]
        return Encoding(self, pieces)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """The packed ids of a text, at once."""
        encoding = self.start(text, add_special_tokens=add_special_tokens)
        encoding.fill()
        return encoding.packed()

    def encode_whole(self, text: str) -> Sequence[int]:
        """The ids of a text that is not cut, without special tokens around it."""
        # Unlike `encode` this lets go of the interpreter, and makes no offsets.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def encode_piece(self, piece: Piece) -> bytes:
        """The packed ids of what stands between two cuts, or before the first."""
        space, text = piece
        if space == self._first_space:
            return pack_tokens(self.encode_whole(text))
        return pack_tokens(self.encode_whole(self._lead + text)[1:])

    def text_of(self, token: int) -> str:
        """A token as its vocabulary spells it; "" for an id without one."""
        return self._tokenizer.id_to_token(token) or ""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def _looked_up(self, text: str) -> list[bytes | Piece]:
        pieces: list[bytes | Piece] = []
        space = self._first_space
        for piece, token in self.cuts.pieces(text) if self.cuts is not None else ((text, None),):
            pieces.append(self._known(space, piece) if token is None else self._packed[token])
            space = self._later_space
        return pieces

    def _known(self, space: int, text: str) -> bytes | Piece:
        packed = self.segments.get(space, text)
        return (space, text) if packed is None else packed
