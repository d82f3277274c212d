"""How many blocks a second the feed takes in on one core, for three shapes of event.

`python -m tests.bench.intake` prints JSON: blocks per second by shape (blocks per event x tokens per block).
The payloads are made before the clock starts; what is measured is everything from payload bytes to the
index.
"""

from __future__ import annotations

import random
import sys
from statistics import median
from time import perf_counter

import msgspec

from indexer.feed import KvFeed

SHAPES = ((64, 16), (1, 16), (64, 128))
NUM_ROUNDS = 5
BLOCKS_PER_ROUND = 32_768


def payloads(blocks_per_event: int, block_tokens: int, rng: random.Random) -> list[bytes]:
    """Messages in vLLM's map layout, one event each, of prompts that share nothing."""
    made = []
    for _ in range(BLOCKS_PER_ROUND // blocks_per_event):
        event = {
            "type": "BlockStored",
            "block_hashes": [rng.getrandbits(64) for _ in range(blocks_per_event)],
            "parent_block_hash": None,
            "token_ids": [rng.randrange(150_000) for _ in range(blocks_per_event * block_tokens)],
            "block_size": block_tokens,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * blocks_per_event,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        made.append(msgspec.msgpack.encode([1.0, [event], 0]))
    return made


def blocks_per_second(blocks_per_event: int, block_tokens: int, num_rounds: int = NUM_ROUNDS) -> list[float]:
    """One rate for each round, each into a feed of its own."""
    messages = payloads(blocks_per_event, block_tokens, random.Random(1))
    rates = []
    for _ in range(num_rounds):
        feed = KvFeed()
        feed.add_publisher(0, engine="vllm", base_model="bench", block_tokens=block_tokens, can_replay=False)
        start = perf_counter()
        for sequence, payload in enumerate(messages):
            feed.receive(0, sequence, payload)
        rates.append(BLOCKS_PER_ROUND / (perf_counter() - start))
        assert len(feed.index) == BLOCKS_PER_ROUND
    return rates


def main() -> None:
    rates = {
        f"{blocks}x{tokens}": round(median(blocks_per_second(blocks, tokens))) for blocks, tokens in SHAPES
    }
    sys.stdout.write(msgspec.json.encode({"blocks_per_second": rates}).decode() + "\n")


if __name__ == "__main__":
    main()
