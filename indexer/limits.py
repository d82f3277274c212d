"""Every bound of this package, each with its reason."""

from __future__ import annotations

INDEX_SHARDS = 256
"""A dict pauses 25 ms when it grows past 350,000 entries and 85 ms past 1.4 million; 256 shards keep a shard of
20 million blocks below 80,000 entries and its growth below 2 ms. A power of two."""

KEY_SHARDS = 64
"""The same for one worker's engine hashes: up to 5 million blocks per worker and tier. A power of two."""

SWEEP_BLOCKS = 10_000
"""Blocks looked at in one sweep slice: about 1 ms."""

PREDICTED_BLOCKS_PER_SLOT = 262_144
"""Blocks believed of a worker whose capacity is unknown: 40 MB at 150 bytes each; 4 million tokens of 16."""

EXPIRE_BLOCKS = 10_000
"""Predicted blocks whose memory is given back in one call: about 3 ms. What is due but still there never matches."""
