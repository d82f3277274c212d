"""Blocks of active prompts: shared ones count once, and every one is gone with its last holder."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens
from router.core.active_blocks import ActiveBlocks


def chain(*token_ids: int) -> list[int]:
    return chain_block_hashes(pack_tokens(token_ids), TOKEN_BYTES, 0)


def test_shared_blocks_count_once() -> None:
    blocks = ActiveBlocks()
    blocks.add(chain(1, 2, 3), 0)
    blocks.add(chain(1, 2, 4), 5)
    assert blocks.num_blocks == 4 + 5
    blocks.remove(chain(1, 2, 3), 0)
    assert blocks.num_blocks == 3 + 5
    blocks.remove(chain(1, 2, 4), 5)
    assert blocks.num_blocks == 0
    blocks.check([], 0)


def test_how_far_a_prompt_is_held() -> None:
    blocks = ActiveBlocks()
    assert blocks.shared_depth(chain(1)) == blocks.shared_depth([]) == 0
    blocks.add(chain(1, 2, 3), 0)
    blocks.add(chain(1, 2, 4, 5), 0)
    for prompt, held in (
        ((1,), 1),
        ((1, 2), 2),
        ((1, 2, 3, 9), 3),
        ((1, 2, 4, 6), 3),
        ((1, 7), 1),
        ((2,), 0),
    ):
        assert blocks.shared_depth(chain(*prompt)) == held, prompt


prompts = st.lists(st.integers(0, 2), max_size=7)


@given(st.lists(prompts, max_size=8), st.randoms(use_true_random=False), prompts)
def test_as_if_every_block_had_a_counter(held: list[list[int]], rng, asked: list[int]) -> None:
    blocks = ActiveBlocks()
    chains = [chain(*prompt) for prompt in held]
    for one in chains:
        blocks.add(one, 1)
    rng.shuffle(chains)
    while True:
        blocks.check(chains, len(chains))
        known = set().union(*chains)
        assert blocks.num_blocks == len(known) + len(chains)
        assert blocks.shared_depth(chain(*asked)) == len(known.intersection(chain(*asked)))
        if not chains:
            return
        blocks.remove(chains.pop(), 1)
