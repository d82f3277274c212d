import pytest

from indexer.blocks import HashSpace, Unit
from indexer.trust import TrustLevel
from router.core.health import HealthSign
from router.core.outcome import Outcome
from tests.support.columns import MODEL
from tests.support.fleets import BLOCK, Engine, make_core, prompt_of, publishing, request, silent

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
    core.feed.disconnected(core.slot_of("a"), now=0.0)
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
    core.feed.disconnected(core.slot_of("a"), now=0.0)
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


@pytest.mark.parametrize(
    "fields", [{"publishes_events": False}, {"block_tokens": None}, {"engine": "of another kind"}]
)
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
