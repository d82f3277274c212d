"""The mock's tokenizer and chat template: deterministic, fast, and the same for every path.

About one token per word, four characters at most: a token is up to four characters with the space before
them. 10,000 words of four letters (consonant, vowel, consonant, vowel) have ids of their own and come back
unchanged from `detokenize`; every other piece gets an id by its checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from zlib import crc32

BOS = 1
MESSAGE_START = 2
MESSAGE_END = 3
NEWLINE = 4

CONSONANTS = "bcdfghjklmnpqrstvwxz"
VOWELS = "aeiou"
WORDS = tuple(map("".join, product(CONSONANTS, VOWELS, CONSONANTS, VOWELS)))
FIRST_WORD = 16
"""Id of WORDS[0]; below it are the special tokens."""
NUM_WORDS = len(WORDS)
FIRST_HASHED = FIRST_WORD + NUM_WORDS
VOCABULARY_SIZE = 131_072
TEXTS_KEPT = 32
"""A gateway asks for the tokens of a prompt just before it sends the prompt."""

TOKEN_TEXT = tuple(" " + word for word in WORDS)
"""What the word with id FIRST_WORD + i adds to a text; all of one length."""

_PIECE = re.compile(r" ?\S{1,4}|\s")
_SPECIAL_TEXT = {BOS: "<s>", MESSAGE_START: "<|start|>", MESSAGE_END: "<|end|>", NEWLINE: "\n"}


class _Ids(dict[str, int]):
    """Piece -> id. Unknown pieces are computed each time, so the table does not grow."""

    def __missing__(self, piece: str) -> int:
        checksum = crc32(piece.encode("utf-8", "surrogatepass"))
        return FIRST_HASHED + checksum % (VOCABULARY_SIZE - FIRST_HASHED)


# A word at the start of a text, without its space, is the same token.
_IDS = _Ids({"\n": NEWLINE})
_IDS.update((text, FIRST_WORD + i) for i, text in enumerate(TOKEN_TEXT))
_IDS.update((word, FIRST_WORD + i) for i, word in enumerate(WORDS))


def tokenize(text: str, *, add_bos: bool = True) -> list[int]:
    """Token ids of a text; about 2 ms for 12,000 words."""
    return [BOS, *_ids_of(text)] if add_bos else list(_ids_of(text))


@lru_cache(maxsize=TEXTS_KEPT)
def _ids_of(text: str) -> tuple[int, ...]:
    return tuple(map(_IDS.__getitem__, _PIECE.findall(text)))


def detokenize(token_ids: Iterable[int]) -> str:
    """Text of token ids. Words come back as they were, special tokens as markup, others as their number."""
    return "".join(map(_text_of, token_ids))


def _text_of(token_id: int) -> str:
    if FIRST_WORD <= token_id < FIRST_HASHED:
        return TOKEN_TEXT[token_id - FIRST_WORD]
    return _SPECIAL_TEXT.get(token_id, f" {token_id}")


def render_chat(messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation of (role, text): BOS once, each message between its markers."""
    token_ids = [BOS]
    for role, text in messages:
        token_ids += (MESSAGE_START, *tokenize(role, add_bos=False), NEWLINE)
        token_ids += tokenize(text, add_bos=False)
        token_ids.append(MESSAGE_END)
    if add_generation_prompt:
        token_ids += (MESSAGE_START, *tokenize("assistant", add_bos=False), NEWLINE)
    return token_ids
