"""Blocks whose publisher names them by our own hashes; all else is tested through the feed."""

from __future__ import annotations

from indexer.adapters import Adapter
from indexer.events import EventBatch, HashedBlocks
from indexer.feed import KvFeed
from indexer.trust import TrustLevel

EVENTS: dict[bytes, list[HashedBlocks]] = {
    b"store": [HashedBlocks([11, 12]), HashedBlocks([13], 12)],
    b"again": [HashedBlocks([12], 11)],
    b"remove": [HashedBlocks([12, 99], is_removal=True)],
}


def test_they_are_held_and_removed_copy_by_copy():
    adapter = Adapter(lambda payload: EventBatch(EVENTS[payload]), keeps_copies=True)
    feed = KvFeed(adapters={"own": adapter})
    feed.add_publisher(0, engine="own", base_model="m", block_tokens=512, can_replay=False)
    feed.connected(0)
    depths = []
    for sequence, payload in enumerate([b"store", b"again", b"remove", b"remove"]):
        feed.receive(0, sequence, payload)
        feed.check()
        depths.append(feed.overlap([11, 12, 13, 14], 1).device.get(0, 0))
    assert depths == [3, 3, 3, 1]
    assert feed.trust(0).level is TrustLevel.EXACT
    stats = feed.stats(0)
    assert (stats.num_blocks_stored, stats.num_blocks_removed, stats.num_blocks) == (4, 1, 2)
