"""What the core's feed is told of a simulated worker, and when."""

from __future__ import annotations

import random

from indexer.events import BlockRemoved, BlockStored
from indexer.feed import KvFeed
from indexer.trust import TrustLevel
from loadgen.sim.events import EventChannel
from loadgen.sim.wire import ADAPTERS, ENGINE
from loadgen.sim.worker import REPLAY_BUFFER_MESSAGES, SimWorker
from tests.support.simulations import small_engine

DELAY = 0.5


def channel_and_worker(*, loss=0.0, can_replay=True):
    feed = KvFeed(adapters=ADAPTERS)
    feed.add_publisher(0, engine=ENGINE, base_model="m", block_tokens=64, can_replay=can_replay)
    channel = EventChannel(feed, delay=DELAY, loss=loss, rng=random.Random(0))
    worker = SimWorker("w", 0, small_engine(), random.Random(0))
    channel.connect(worker, 0.0)
    channel.deliver(2 * DELAY)
    return channel, worker, feed


def stored(*hashes):
    return [BlockStored(list(hashes), None, (), 64)]


def depth(feed):
    return feed.overlap([1, 2, 3], 1).device.get(0, 0)


def test_a_message_arrives_after_its_delay():
    channel, worker, feed = channel_and_worker()
    assert feed.trust(0).level is TrustLevel.EXACT
    channel.send(worker, worker.publish(stored(1, 2), 10.0))
    channel.deliver(10.4)
    assert depth(feed) == 0
    channel.deliver(10.5)
    assert depth(feed) == 2
    channel.send(worker, worker.publish([BlockRemoved([2])], 11.0))
    channel.deliver(12.0)
    assert depth(feed) == 1


def test_a_gap_is_filled_by_a_replay():
    channel, worker, feed = channel_and_worker()
    worker.publish(stored(1), 10.0)  # never sent
    channel.send(worker, worker.publish(stored(2), 11.0))
    channel.deliver(11.5)
    assert depth(feed) == 0
    assert feed.trust(0).level is TrustLevel.RECOVERING
    channel.deliver(12.5)
    assert depth(feed) == 2
    assert feed.trust(0).level is TrustLevel.EXACT


def test_without_a_replay_what_came_before_a_gap_is_forgotten():
    channel, worker, feed = channel_and_worker(can_replay=False)
    channel.send(worker, worker.publish(stored(1, 2), 10.0))
    channel.deliver(10.5)
    worker.publish([BlockRemoved([2])], 11.0)
    channel.send(worker, worker.publish(stored(3), 12.0))
    channel.deliver(12.5)
    assert depth(feed) == 0


def test_what_a_dead_process_had_sent_is_void():
    channel, worker, feed = channel_and_worker()
    channel.send(worker, worker.publish(stored(1, 2), 10.0))
    channel.deliver(10.5)
    channel.send(worker, worker.publish(stored(3), 10.6))
    channel.disconnect(worker)
    worker.die()
    worker.come_back()
    channel.connect(worker, 20.0)
    channel.deliver(30.0)
    assert depth(feed) == 0
    assert feed.stats(0).num_restarts == 1


def test_losses_are_a_share_of_the_messages():
    channel, worker, _feed = channel_and_worker(loss=0.25)
    for number in range(400):
        channel.send(worker, worker.publish(stored(number), float(number)))
    assert 70 < channel.num_lost < 130


def test_a_publisher_keeps_a_bounded_history():
    worker = SimWorker("w", 0, small_engine(), random.Random(0))
    for number in range(REPLAY_BUFFER_MESSAGES + 10):
        worker.publish(stored(number), float(number))
    kept = worker.sent_between(0, until=1e9)
    assert [kept[0].sequence, len(kept)] == [10, REPLAY_BUFFER_MESSAGES]
    assert [message.sequence for message in worker.sent_between(20, until=22.0)] == [20, 21, 22]
