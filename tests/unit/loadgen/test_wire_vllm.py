"""Hashes and fields as vLLM's releases spelled them."""

from __future__ import annotations

import msgspec

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.wire_vllm import as_array, as_map, as_map_with_bytes, as_short_array, signed

STORED = BlockStored([2**63, 7], 5, [1, 2, 3, 4], 2, adapter="a", cache_salt="s")


def test_signed_is_two_s_complement():
    assert [signed(value) for value in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]


def test_the_first_array_ends_with_the_adapters_number():
    assert as_short_array(STORED) == ["BlockStored", [-(2**63), 7], 5, [1, 2, 3, 4], 2, 1]
    assert as_short_array(BlockRemoved([2**63])) == ["BlockRemoved", [-(2**63)]]
    assert as_short_array(AllBlocksCleared()) == ["AllBlocksCleared"]


def test_later_arrays_and_maps_have_the_same_fields_but_for_the_window():
    fields = msgspec.to_builtins(as_map(STORED))
    assert msgspec.to_builtins(as_array(STORED)) == [*fields.values(), None]
    assert fields["extra_keys"] == [["a", "s"], ["a"]]


def test_byte_hashes_name_the_same_blocks_in_every_event():
    stored = as_map_with_bytes(BlockStored([7], 5, [1, 2], 2))
    assert as_map_with_bytes(BlockRemoved([7])).block_hashes == stored.block_hashes
    assert as_map_with_bytes(BlockStored([8], 7, [1, 2], 2)).parent_block_hash == stored.block_hashes[0]
    assert {len(each) for each in (*stored.block_hashes, stored.parent_block_hash)} == {32}
