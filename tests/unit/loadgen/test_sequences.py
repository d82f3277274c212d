"""Engine hashes of the model: chained, only of complete blocks, and apart where an engine keeps apart."""

from __future__ import annotations

from loadgen.sequences import TokenSequence

SEED = b"\0" * 32


def sequence(tokens, *, seed=SEED, adapter="", cache_salt=""):
    return TokenSequence(
        id="r",
        tokens=list(tokens),
        max_tokens=8,
        block_tokens=4,
        digest=seed,
        adapter=adapter,
        cache_salt=cache_salt,
    )


def test_only_complete_blocks_have_a_hash():
    assert [len(sequence(range(n)).hashes) for n in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_equal_prefixes_have_equal_hashes_and_a_change_alters_all_that_follow():
    base, changed = sequence(range(12)).hashes, sequence([0, 1, 2, 3, 99, *range(5, 12)]).hashes
    assert sequence(range(8)).hashes == base[:2]
    assert changed[0] == base[0]
    assert not set(changed[1:]) & set(base)


def test_seed_adapter_and_salt_keep_blocks_apart():
    variants = [
        sequence(range(8)),
        sequence(range(8), seed=b"\1" * 32),
        sequence(range(8), adapter="a"),
        sequence(range(8), cache_salt="s"),
    ]
    assert len({each.hashes[1] for each in variants}) == len(variants)


def test_a_block_that_generation_fills_is_hashed_as_if_it_had_been_prompt():
    grown = sequence(range(6))
    for _ in range(2):
        grown.generate()
    assert len(grown.tokens) == 8
    assert grown.hashes == sequence(grown.tokens).hashes
    assert len(grown.hashes) == 2


def test_equal_prompts_generate_equal_tokens():
    first, second = sequence(range(5)), sequence(range(5))
    for _ in range(3):
        first.generate()
        second.generate()
    assert first.tokens == second.tokens
