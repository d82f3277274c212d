"""A text cut at special tokens has the tokens of the whole: for every tokenizer at hand, and made-up ones."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from indexer.blocks import pack_tokens
from router.tokens.local.encoder import Encoder
from router.tokens.local.loading import load_encoder
from router.tokens.local.segments import SegmentCache
from tests.support.tokenizers import REAL, encoder, raw_tokenizer

PIECES = (
    "", " ", "  ", "\n", "\n\n", "\t", "a", "hello", " world", "Grüße", "e\u0301", "\u0301", "你好", "🚀",
    "👩\u200d💻", "x1234567", "don't", "def f(x):\n    return x\n", "<", "<|", "|>", "▁", "▁a", "\u00a0",
    "\u2028", "_", "-", "0",
)  # fmt: skip


def check(encoder: Encoder, text: str) -> None:
    assert encoder.encode(text) == pack_tokens(encoder.encode_whole(text))


def texts(special: list[str]) -> st.SearchStrategy[str]:
    """Texts that are full of special tokens, whole and broken, with blanks and words beside them."""
    broken = [token[:-1] for token in special] + [token[1:] for token in special]
    piece = st.sampled_from([*PIECES, *special * 2, *broken]) | st.text(max_size=5)
    return st.lists(piece, max_size=12).map("".join)


@pytest.mark.parametrize("name", ["tiny", *REAL])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_real_tokenizers(name, data):
    tokenizer = encoder(name)
    assert tokenizer.cuts is not None
    special = sorted(tokenizer.cuts.ids, key=lambda token: (len(token), token))[
        :: max(1, len(tokenizer.cuts.ids) // 40)
    ]
    text = data.draw(texts(special))
    assume(_is_text(text))
    check(tokenizer, text)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Made-up tokenizers: every flag beside every kind of normalizer and pre-tokenizer

NORMALIZERS = {
    "none": None,
    "prepend": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "nfkc": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
}
PRE_TOKENIZERS = {
    "none": None,
    "metaspace first": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
    "metaspace always": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "bytes": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "words": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}],
    },
}
FLAGS = {
    "<a>": {},
    "<ab>": {},
    "b>c": {},
    "tok": {"single_word": True},
    "<l>": {"lstrip": True},
    "<r>": {"rstrip": True},
    "Norm": {"normalized": True},
    " x ": {},
    "w": {},
}
ALPHABET = [*"abcdefghijklmnopqrstuvwxyzü", "▁", "▁t", "to", "ok", "<", ">", "Ġ", "Ċ", "1", "_", "-", "!"]


def made_up(normalizer: str, pre_tokenizer: str, flags: dict[str, dict[str, bool]]) -> Encoder:
    vocabulary = {"<unk>": 0} | {token: index for index, token in enumerate(ALPHABET, 1)}
    added = [
        {"id": 100 + index, "content": content, "special": index % 2 == 0}
        | {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | given
        for index, (content, given) in enumerate(flags.items())
    ]
    description = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": NORMALIZERS[normalizer],
        "pre_tokenizer": PRE_TOKENIZERS[pre_tokenizer],
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": False,
            "vocab": vocabulary, "merges": [["▁", "t"], ["t", "o"], ["o", "k"]],
        },
    }  # fmt: skip
    return load_encoder(msgspec.json.encode(description), {}, SegmentCache())


FLAG_SETS = {
    "all": FLAGS,
    "strips": {content: given for content, given in FLAGS.items() if "single_word" not in given},
    "plain": {content: given for content, given in FLAGS.items() if not given.keys() - {"normalized"}},
}
MADE_UP = {
    (normalizer, pre_tokenizer, flags): made_up(normalizer, pre_tokenizer, FLAG_SETS[flags])
    for normalizer, pre_tokenizer, flags in product(NORMALIZERS, PRE_TOKENIZERS, FLAG_SETS)
}


@pytest.mark.parametrize("tokenizer", MADE_UP.values(), ids=map(" ".join, MADE_UP))
@settings(max_examples=40)
@example(text="tok<a>tok")
@example(text="x <l>tok<r>  <a> b>c")
@example(text="<r> x <l>")
@example(text="<r> x t")
@example(text="t x <l>")
@example(text="<a> <l><r> <ab>")
@given(text=texts(list(FLAGS)))
def test_made_up_tokenizers(tokenizer, text):
    assume(_is_text(text))
    assert tokenizer.cuts is not None
    check(tokenizer, text)


def test_a_turn_costs_its_new_text():
    tokenizer = load_encoder(*raw_tokenizer("tiny"), SegmentCache())
    first = "<|im_start|>user\nA long question.<|im_end|>\n<|im_start|>assistant\n"
    tokenizer.encode(first)
    later = first + "An answer.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    missing = tokenizer.start(later, add_special_tokens=False).missing
    assert [text for _, text in missing] == ["assistant\nAn answer.", "user\nMore."]
