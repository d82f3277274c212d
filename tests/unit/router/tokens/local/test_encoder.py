"""Pieces are encoded once, remembered, and put together again."""

import pytest

from indexer.blocks import pack_tokens
from router.tokens.local.encoder import Encoder
from router.tokens.local.loading import load_encoder
from router.tokens.local.segments import SegmentCache
from router.tokens.refusals import NoTokens
from tests.support.tokenizers import encoder, raw_tokenizer

TURN = "<|im_start|>user\nhello<|im_end|>\n"


@pytest.fixture
def fresh():
    return load_encoder(*raw_tokenizer("tiny"), SegmentCache())


def test_a_piece_that_repeats_within_a_text_is_encoded_once(fresh):
    encoding = fresh.start(TURN * 3, add_special_tokens=False)
    assert [text for _, text in encoding.missing] == ["user\nhello", "\n"]
    assert encoding.num_missing_characters == len("user\nhello\n")
    encoding.fill()
    assert encoding.packed() == pack_tokens(fresh.encode_whole(TURN * 3))


def test_what_was_encoded_is_not_missing_again(fresh):
    fresh.encode(TURN)
    assert not fresh.start(TURN, add_special_tokens=False).missing


def test_an_abandoned_encoding_leaves_no_trace(fresh):
    fresh.start(TURN, add_special_tokens=False).fill()
    assert len(fresh.segments) == 0


def test_two_tokenizers_share_a_cache_but_no_texts(fresh):
    raw, config = raw_tokenizer("tiny")
    other = load_encoder(raw, config, fresh.segments)
    fresh.encode(TURN)
    assert other.start(TURN, add_special_tokens=False).missing


def test_an_empty_text(fresh):
    assert fresh.encode("") == b""


def test_a_lone_surrogate_is_no_text():
    with pytest.raises(NoTokens) as refusal:
        encoder("tiny").start("\ud800", add_special_tokens=False)
    assert refusal.value.reason == "text"


def test_words_for_tokens():
    tokenizer: Encoder = encoder("tiny")
    (token, *_) = tokenizer.encode_whole("<|im_end|>")
    assert (tokenizer.text_of(token), tokenizer.text_of(10**6)) == ("<|im_end|>", "")
    assert tokenizer.decode(tokenizer.encode_whole(TURN)) == TURN
