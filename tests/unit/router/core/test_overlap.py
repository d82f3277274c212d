"""What workers are believed to hold: first through the core, then the three sources by themselves."""

import pytest

from indexer.blocks import HashSpace, Unit
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from indexer.trust import TrustLevel
from loadgen.wire import Layout, encode_batch
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.overlap import Beliefs, Overlap
from router.core.prompt import Prompt
from router.core.usage import Expectation
from tests.support.columns import MODEL, make_pool
from tests.support.fleets import BLOCK, Engine, chain_of, make_core, prompt_of, publishing, request, silent

FOUR = list(range(4 * BLOCK))
TWO = FOUR[: 2 * BLOCK]


def depths(core, prompt, now=0.0):
    """Believed leading blocks on the device, by worker."""
    candidates = core.preview(request("preview"), prompt, now=now).candidates
    columns = zip(candidates.workers, candidates.device_overlap, strict=True)
    return {worker.id: depth for worker, depth in columns}


def tiers(core, prompt):
    """Blocks of the only worker on device, host and disk."""
    candidates = core.preview(request("preview"), prompt, now=0.0).candidates
    return candidates.device_overlap[0], candidates.host_overlap[0], candidates.disk_overlap[0]


def serve(core, tokens, now=0.0, unit=Unit.TOKENS):
    """Sends a prompt and lets it be answered; the worker that it went to."""
    decision = core.route(request("served"), prompt_of(tokens, unit=unit), now=now)
    core.first_token("served", now=now)
    core.finish("served", Outcome.DONE, now=now)
    return decision.worker.id


def test_events_count_only_while_they_are_sound():
    core = make_core([publishing("a")])
    assert core.worker("a").trust.level is TrustLevel.RECOVERING
    Engine(core, "a").store(FOUR)
    assert core.worker("a").trust.level is TrustLevel.EXACT
    assert depths(core, prompt_of(FOUR)) == {"a": 4}
    core.feed.disconnected(core.slot_of("a"))
    assert depths(core, prompt_of(FOUR)) == {"a": 0}


def test_the_larger_of_events_and_bridge_counts():
    core = make_core([publishing("a")])
    engine = Engine(core, "a")
    engine.store(TWO)
    serve(core, FOUR)
    assert depths(core, prompt_of(FOUR), now=4.9) == {"a": 4}
    assert depths(core, prompt_of(FOUR), now=5.0) == {"a": 2}
    engine.store(FOUR)
    assert depths(core, prompt_of(FOUR), now=5.0) == {"a": 4}


def test_in_doubt_only_the_bridge_counts():
    core = make_core([publishing("a")])
    Engine(core, "a").store(FOUR)
    core.feed.disconnected(core.slot_of("a"))
    serve(core, TWO)
    assert depths(core, prompt_of(FOUR), now=1.0) == {"a": 2}
    assert depths(core, prompt_of(FOUR), now=6.0) == {"a": 0}


def test_what_events_show_already_is_not_bridged():
    core = make_core([publishing("a")])
    Engine(core, "a").store(FOUR)
    serve(core, FOUR)
    assert core.worker("a").num_predicted_blocks == 0


def test_a_bridge_over_the_device_s_end_takes_from_what_continued_it():
    core = make_core([publishing("a")])
    six = list(range(6 * BLOCK))
    engine = Engine(core, "a")
    engine.store(six)
    engine.offload(six, 2, 4, "CPU")
    engine.offload(six, 4, 6, "DISK")
    engine.remove(six, 2, 6)
    assert tiers(core, prompt_of(six)) == (2, 2, 2)
    serve(core, six[: 3 * BLOCK])
    assert tiers(core, prompt_of(six)) == (3, 1, 2)
    serve(core, six[: 5 * BLOCK])
    assert tiers(core, prompt_of(six)) == (5, 0, 1)
    serve(core, six)
    assert tiers(core, prompt_of(six)) == (6, 0, 0)


def test_predictions_are_believed_for_their_time_since_last_use():
    core = make_core([silent("a")], predicted_ttl=120.0)
    assert core.worker("a").trust.level is TrustLevel.PREDICTED
    serve(core, FOUR, now=0.0)
    serve(core, TWO, now=100.0)
    assert depths(core, prompt_of(FOUR), now=119.0) == {"a": 4}
    assert depths(core, prompt_of(FOUR), now=120.0) == {"a": 2}
    assert depths(core, prompt_of(FOUR), now=220.0) == {"a": 0}


def test_predictions_stay_within_the_worker_s_capacity():
    core = make_core([silent("a", num_blocks=4)])
    other = [9] * (2 * BLOCK)
    serve(core, FOUR)
    serve(core, other)
    assert core.worker("a").num_predicted_blocks == 4
    assert depths(core, prompt_of(other)) == {"a": 2}
    assert depths(core, prompt_of(FOUR)) == {"a": 2}


@pytest.mark.parametrize("make", [silent, publishing])
def test_a_restarted_worker_is_believed_to_be_empty(make):
    core = make_core([make("a")])
    serve(core, FOUR)
    core.observe_health("a", HealthSign.RESTARTED, now=1.0)
    assert depths(core, prompt_of(FOUR), now=1.0) == {"a": 0}
    core.check()


def test_byte_prompts_meet_predictions_only_even_on_workers_with_events():
    core = make_core([publishing("a")], predicted_ttl=120.0)
    Engine(core, "a").store(FOUR)
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    # The same hashes, were they taken for token blocks, would be found in the events.
    disguised = prompt_of(FOUR)
    disguised.unit = Unit.BYTES
    assert depths(core, disguised) == depths(core, as_bytes) == {"a": 0}
    serve(core, FOUR, unit=Unit.BYTES)
    assert depths(core, as_bytes, now=100.0) == {"a": 4}
    assert depths(core, as_bytes, now=120.0) == {"a": 0}


@pytest.mark.parametrize("fields", [{"publishes_events": False}, {"engine": "of another kind"}])
def test_a_worker_whose_events_cannot_be_followed_is_predicted(fields):
    core = make_core([silent("a", **({"publishes_events": True} | fields))])
    assert core.worker("a").trust.level is TrustLevel.PREDICTED
    serve(core, FOUR)
    assert depths(core, prompt_of(FOUR), now=100.0) == {"a": 4}


def test_each_block_size_is_looked_up_in_its_own_space_and_compared_in_tokens():
    core = make_core([silent("a"), silent("b", block_tokens=32)])
    prompt = prompt_of(FOUR, block_sizes=(16, 32))
    assert core.hash_spaces(MODEL) == [HashSpace(MODEL, 16), HashSpace(MODEL, 32)]
    for worker_id in "ab":
        core.set_draining("a", worker_id == "b", now=0.0)
        core.set_draining("b", worker_id == "a", now=0.0)
        core.route(request(worker_id), prompt, now=0.0)
    for worker_id in "ab":
        core.set_draining(worker_id, False, now=0.0)
    assert depths(core, prompt_of(FOUR, block_sizes=(16, 32))) == {"a": 4, "b": 4}
    assert depths(core, prompt_of(FOUR[: 3 * BLOCK], block_sizes=(16, 32))) == {"a": 3, "b": 2}


def test_a_worker_that_left_is_forgotten_at_once_and_its_slot_is_free_after_sweeping():
    core = make_core([publishing("a"), silent("b")])
    Engine(core, "a").store(FOUR)
    core.reconcile([silent("b")], now=0.0)
    core.reconcile([silent("b"), publishing("c")], now=0.0)
    assert core.slot_of("c") == 2
    while core.expire(now=1.0) is not None:
        core.check()
    core.reconcile([silent("b"), publishing("c"), publishing("d")], now=1.0)
    assert core.slot_of("d") == 0
    assert depths(core, prompt_of(FOUR), now=1.0) == {"b": 0, "c": 0, "d": 0}


# The sources by themselves

SPACE = HashSpace(MODEL, BLOCK)
CHAIN = chain_of(FOUR)


class Believer:
    """Beliefs about workers on slots 0, 1, ... whose events are sound."""

    def __init__(self, *workers, predicted_ttl=120.0, bridge_ttl=5.0):
        self.beliefs = Beliefs(predicted_ttl=predicted_ttl, bridge_ttl=bridge_ttl)
        self.pool = make_pool([(worker, slot) for slot, worker in enumerate(workers)], block_tokens=BLOCK)
        self._sequences = [0] * len(workers)
        for slot, worker in enumerate(workers):
            self.beliefs.add(slot, worker)
            if self.beliefs.has_events(slot):
                self.beliefs.feed.connected(slot)
                self.publish(slot, AllBlocksCleared())

    def publish(self, slot, *events):
        payload = encode_batch(events, timestamp=0.0, dp_rank=0, layout=Layout.MAPS)
        self.beliefs.feed.receive(slot, self._sequences[slot], payload)
        self._sequences[slot] += 1

    def begin_anew(self, slot):
        """Another incarnation of the worker numbers its messages from 0."""
        self._sequences[slot] = 0

    def store(self, slot, num_blocks):
        """The worker tells that it holds the first blocks of FOUR."""
        self.publish(slot, BlockStored(CHAIN[:num_blocks], None, FOUR[: num_blocks * BLOCK], BLOCK))

    def match(self, tokens=FOUR, *, unit=Unit.TOKENS, now=0.0):
        return self.beliefs.match(prompt_of(tokens, unit=unit), self.pool, now=now)

    def believe(self, slot, tokens=FOUR, *, unit=Unit.TOKENS, now=0.0):
        prompt = prompt_of(tokens, unit=unit)
        overlap = self.beliefs.match(prompt, self.pool, now=now)
        self.beliefs.believe(slot, prompt, SPACE, overlap, now=now)

    def expectation(self, slot, *, exact_blocks, num_tokens=4 * BLOCK + 1):
        return Expectation(
            chain=CHAIN,
            num_tokens=num_tokens,
            is_exact=True,
            exact_blocks=exact_blocks,
            num_losses=self.beliefs.num_losses(slot),
        )


def test_depth_is_what_all_tiers_hold_together():
    overlap = Overlap(device={0: 2, 1: 1}, host={0: 1}, disk={0: 3, 2: 4})
    assert [overlap.depth(slot) for slot in range(4)] == [6, 1, 4, 0]


def test_exact_is_what_events_alone_say():
    believer = Believer(publishing("a"), silent("b"))
    believer.store(0, 2)
    believer.believe(0)
    believer.believe(1)
    overlap = believer.match()
    assert overlap.device == {0: 4, 1: 4}
    assert overlap.exact == {0: 2}


def test_a_bridge_that_reaches_less_far_than_events_changes_nothing():
    believer = Believer(publishing("a"))
    believer.believe(0, TWO)
    believer.store(0, 3)
    assert believer.match().device == {0: 3}


def test_only_workers_of_the_pool_are_looked_up():
    believer = Believer(publishing("a"), silent("b"), silent("c"))
    for slot in range(3):
        believer.believe(slot)
    believer.pool = make_pool([(silent("b"), 1)], block_tokens=BLOCK)
    assert believer.match().device == {1: 4}


def test_a_prompt_shorter_than_a_block_has_nothing_to_look_up_or_believe():
    believer = Believer(publishing("a"), silent("b"))
    for slot in range(2):
        believer.believe(slot, FOUR[:15])
    assert believer.match(FOUR[:15]) == Overlap()
    assert [believer.beliefs.num_predicted_blocks(slot) for slot in range(2)] == [0, 0]


def test_a_prompt_that_was_not_hashed_for_the_worker_is_not_believed_of_it():
    believer = Believer(silent("a"))
    elsewhere = Prompt(64, Unit.TOKENS, {HashSpace("other", BLOCK): CHAIN}, exact=True)
    believer.beliefs.believe(0, elsewhere, SPACE, Overlap(), now=0.0)
    assert believer.beliefs.num_predicted_blocks(0) == 0


def test_bytes_and_tokens_of_a_worker_without_events_are_predicted_side_by_side():
    believer = Believer(silent("a"))
    believer.believe(0, FOUR)
    believer.believe(0, TWO, unit=Unit.BYTES)
    assert believer.match().device == {0: 4}
    assert believer.match(unit=Unit.BYTES).device == {0: 2}


def test_held_blocks_do_not_count_twice_what_is_bridged_until_events_tell():
    believer = Believer(publishing("a"))
    believer.believe(0)
    believer.store(0, 2)
    assert believer.beliefs.held_blocks([0]) == [4]
    believer.store(0, 4)
    assert believer.beliefs.held_blocks([0]) == [4]
    believer.believe(0, TWO, unit=Unit.BYTES)
    assert believer.beliefs.held_blocks([0]) == [6]


def test_what_is_forgotten_after_a_restart_is_ours_alone():
    believer = Believer(publishing("a"), silent("b"))
    believer.store(0, 2)
    for slot in range(2):
        believer.believe(slot)
        believer.believe(slot, unit=Unit.BYTES)
    believer.beliefs.forget_predictions(0)
    assert believer.match().device == {0: 2, 1: 4}
    assert believer.match(unit=Unit.BYTES).device == {1: 4}
    believer.beliefs.forget_predictions(1)
    assert believer.match().device == {0: 2}


def test_a_worker_with_events_answers_from_its_bridge_alone_while_in_doubt():
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    believer.beliefs.feed.disconnected(0)
    assert believer.match() == Overlap()
    believer.believe(0, TWO)
    assert believer.match(now=1.0) == Overlap(device={0: 2})
    assert believer.match(now=5.0) == Overlap()


@pytest.mark.parametrize("make", [publishing, silent])
def test_what_is_no_longer_believed_is_given_back(make):
    believer = Believer(make("a"), predicted_ttl=10.0, bridge_ttl=10.0)
    believer.believe(0)
    believer.beliefs.expire(now=9.0)
    assert believer.beliefs.num_predicted_blocks(0) == 4
    believer.beliefs.expire(now=10.0)
    assert believer.beliefs.num_predicted_blocks(0) == 0


@pytest.mark.parametrize(
    ("make", "unit"), [(publishing, Unit.TOKENS), (publishing, Unit.BYTES), (silent, Unit.TOKENS)]
)
def test_a_slot_is_free_once_nothing_of_its_worker_is_left(make, unit):
    believer = Believer(make("a"))
    believer.believe(0, unit=unit)
    assert not believer.beliefs.is_free(0)
    believer.beliefs.remove(0)
    assert believer.match(unit=unit) == Overlap()
    while not believer.beliefs.is_free(0):
        believer.beliefs.expire(now=0.0)
    believer.beliefs.check()


# Reported less than promised


@pytest.mark.parametrize(
    ("reported", "left"),
    [
        (0, 0),
        (15, 0),  # an engine counts whole blocks; a part of one is none
        (16, 1),
        (32, 2),
        (48, 4),  # one block less is what engines find under EAGLE: it is there, and more may lie behind it
        (64, 4),
        (80, 4),
    ],
)
def test_the_claim_beyond_the_reported_depth_goes(reported, left):
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    believer.beliefs.withdraw(0, believer.expectation(0, exact_blocks=4), BLOCK, reported, now=0.0)
    assert believer.match(now=100.0).device.get(0, 0) == left
    assert believer.match().device == {0: 4}, "what it computed anew is bridged"
    assert believer.beliefs.feed.stats(0).num_overreports == (left < 4)


def test_the_last_token_s_block_is_not_missed_when_a_prompt_is_cached_whole():
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    whole = believer.expectation(0, exact_blocks=4, num_tokens=len(FOUR))
    believer.beliefs.withdraw(0, whole, BLOCK, 3 * BLOCK, now=0.0)
    assert believer.match().exact == {0: 4}
    believer.beliefs.withdraw(0, whole, BLOCK, 1 * BLOCK, now=0.0)
    assert believer.match().exact == {0: 1}


def test_blocks_that_were_not_promised_are_not_withdrawn():
    believer = Believer(publishing("a"))
    believer.store(0, 2)
    asked = believer.expectation(0, exact_blocks=2)
    believer.store(0, 4)
    believer.beliefs.withdraw(0, asked, BLOCK, 0, now=0.0)
    assert believer.match().exact == {}
    believer.store(0, 2)
    assert believer.match().exact == {0: 4}, "the third and fourth block were claimed all along"


@pytest.mark.parametrize("loss", [BlockRemoved(CHAIN[:1]), AllBlocksCleared()])
def test_events_that_told_of_a_loss_meanwhile_explain_the_difference(loss):
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    asked = believer.expectation(0, exact_blocks=4)
    believer.publish(0, loss)
    believer.store(0, 4)
    believer.beliefs.withdraw(0, asked, BLOCK, 0, now=0.0)
    assert believer.match().exact == {0: 4}
    assert believer.beliefs.num_predicted_blocks(0) == 0


def test_a_restart_that_the_feed_noticed_is_a_loss():
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    asked = believer.expectation(0, exact_blocks=4)
    believer.begin_anew(0)
    believer.store(0, 4)
    believer.beliefs.withdraw(0, asked, BLOCK, 0, now=0.0)
    assert believer.match().exact == {0: 4}


def test_a_new_loss_does_not_excuse_the_next_request():
    believer = Believer(publishing("a"))
    believer.publish(0, AllBlocksCleared())
    believer.store(0, 4)
    believer.beliefs.withdraw(0, believer.expectation(0, exact_blocks=4), BLOCK, 0, now=0.0)
    assert believer.match().exact == {}


def test_a_worker_without_events_has_promised_nothing():
    believer = Believer(silent("a"))
    believer.believe(0)
    believer.beliefs.withdraw(0, believer.expectation(0, exact_blocks=0), BLOCK, 0, now=0.0)
    assert believer.match().device == {0: 4}


# Attempts that came to nothing


def test_proof_and_retraction_find_the_index_in_which_the_prompt_is_believed():
    believer = Believer(publishing("a"))
    bytes_chain = chain_of(FOUR, unit=Unit.BYTES)
    for unit in Unit:
        believer.believe(0, unit=unit)
    believer.beliefs.confirm(0, Unit.BYTES, bytes_chain)
    believer.beliefs.retract(0, Unit.BYTES, bytes_chain)
    believer.beliefs.retract(0, Unit.TOKENS, CHAIN)
    assert believer.match().device == {}
    assert believer.match(unit=Unit.BYTES).device == {0: 4}


def test_what_a_report_has_bridged_is_proven():
    believer = Believer(publishing("a"))
    believer.store(0, 4)
    believer.beliefs.withdraw(0, believer.expectation(0, exact_blocks=4), BLOCK, 0, now=0.0)
    believer.beliefs.retract(0, Unit.TOKENS, CHAIN)
    assert believer.match().device == {0: 4}
