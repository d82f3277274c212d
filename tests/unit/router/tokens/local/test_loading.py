"""Tokenizers are set up as transformers sets them up, and refused where equal texts would not be equal."""

import msgspec
import pytest

from indexer.blocks import pack_tokens
from router.tokenizer_files import NoTokenizer
from router.tokens.local.loading import load_encoder, special_tokens_of
from router.tokens.local.segments import SegmentCache
from tests.support.data import data_path
from tests.support.tokenizers import REAL, encoder, raw_tokenizer


def load(config=None, **changes):
    """The tiny tokenizer with another configuration, or its own description changed."""
    raw, own = raw_tokenizer("tiny")
    if changes:
        raw = msgspec.json.encode(msgspec.json.decode(raw) | changes)
    return load_encoder(raw, own if config is None else config, SegmentCache())


@pytest.mark.parametrize("name", REAL)
def test_vectors_of_real_tokenizers(name):
    vectors = msgspec.json.decode(data_path(f"tokenizers/{name}/vectors.json").read_bytes())
    assert len(vectors) == 27
    for vector in vectors:
        assert encoder(name).encode(vector["text"]) == pack_tokens(vector["ids"]), vector["text"]


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {
        "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]},
        "<|im_end|>": {"id": "<|im_end|>", "ids": [2], "tokens": ["<|im_end|>"]},
    },
}


@pytest.mark.parametrize(
    ("config", "post_processor", "before", "after"),
    [
        ({}, None, [], []),
        ({}, TEMPLATE, [1], [2]),
        (
            {},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            [],
            [],
        ),
        ({"add_bos_token": True, "bos_token": "<|pad|>"}, None, [], []),
        ({"add_bos_token": False}, TEMPLATE, [1], [2]),
    ],
)
def test_what_goes_around_a_text(config, post_processor, before, after):
    tokenizer = load(config, post_processor=post_processor)
    plain = tokenizer.encode("hello")
    around = tokenizer.encode("hello", add_special_tokens=True)
    assert around == pack_tokens(before) + plain + pack_tokens(after)


def test_tokens_that_only_the_configuration_knows():
    tokenizer = load(
        {"added_tokens_decoder": {"4096": {"content": "<new>", "special": True}}, "bos_token": "<b>"}
    )
    assert tokenizer.cuts.ids.keys() >= {"<new>", "<b>", "<|im_end|>"}
    assert len(tokenizer.encode("<new><b>")) == len(pack_tokens([0, 0]))


def test_special_tokens_that_are_text():
    tokenizer = load({"split_special_tokens": True})
    assert tokenizer.cuts is None
    assert len(tokenizer.encode("<|im_end|>")) > len(pack_tokens([0]))


def test_padding_and_truncation_are_for_others():
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert load(truncation=truncation).encode("one two three") == load().encode("one two three")


def test_no_token_to_cut_at():
    tokenizer = load({}, added_tokens=[])
    assert tokenizer.cuts is None
    assert tokenizer.encode("a text") == pack_tokens(tokenizer.encode_whole("a text"))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"model": {"type": "BPE"}}', b"\xff"])
def test_what_is_no_tokenizer(raw):
    with pytest.raises(NoTokenizer):
        load_encoder(raw, {}, SegmentCache())


def test_a_model_with_dropout_is_refused():
    model = msgspec.json.decode(raw_tokenizer("tiny")[0])["model"] | {"dropout": 0.1}
    with pytest.raises(NoTokenizer, match="at random"):
        load(model=model)


def test_special_tokens_by_name():
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "pad_token": None,
        "unk_token": 5,
        "x_token": "x",
    }
    assert special_tokens_of(config) == {"bos_token": "<s>", "eos_token": "</s>"}
