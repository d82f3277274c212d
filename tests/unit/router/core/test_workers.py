import pytest

from indexer.blocks import HashSpace
from policies.types import ServedModel
from router.core.health import Health, HealthSign
from router.core.workers import WorkerChanges, WorkerTable
from router.errors import NoWorkers
from tests.support.columns import MODEL, make_worker

A, B, C = (make_worker(worker_id) for worker_id in "abc")


def table_of(*workers, is_free=lambda slot: True):
    table = WorkerTable(is_free)
    table.reconcile(workers)
    return table


def slots(table):
    return {entry.worker.id: entry.slot for entry in table}


def ids(table, model=MODEL, exclude=()):
    return [worker.id for worker in table.pool(model, exclude).workers]


def test_slots_are_dense_in_the_order_of_arrival():
    assert slots(table_of(A, B, C)) == {"a": 0, "b": 1, "c": 2}


def test_a_slot_is_reused_once_nothing_remembers_its_former_worker():
    remembered = {1}
    table = table_of(A, is_free=lambda slot: slot not in remembered)
    table.reconcile([A, B])
    assert slots(table) == {"a": 0, "b": 2}
    remembered.clear()
    table.reconcile([A, B, C])
    assert slots(table) == {"a": 0, "b": 2, "c": 1}
    table.check()


def test_a_slot_is_not_given_away_in_the_step_that_empties_it():
    held = {0}
    table = table_of(A)
    table._slot_is_free = lambda slot: slot not in held
    table.reconcile([B])
    assert slots(table) == {"b": 1}


def test_reconciling_says_what_changed():
    table = table_of(A, B)
    newer = make_worker("b", version="2")
    changes, gone, new = table.reconcile([newer, C])
    assert changes == WorkerChanges(added=(C,), changed=(newer,), removed=(A,))
    assert [entry.worker for entry in gone] == [A]
    assert [entry.worker for entry in new] == [C]
    assert table.get("b").worker is newer
    assert table.reconcile([newer, C])[0] == WorkerChanges()


def test_more_served_names_leave_the_worker_where_it_is():
    table = table_of(A)
    table.reconcile([make_worker("a", models=(ServedModel(MODEL), ServedModel("lora", MODEL)))])
    assert slots(table) == {"a": 0}
    assert ids(table, "lora") == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://elsewhere:1"},
        {"engine": "sglang"},
        {"dp_rank": 1},
        {"block_tokens": 32},
        {"num_blocks": 7},
        {"publishes_events": True},
        {"models": (ServedModel("another"),)},
    ],
)
def test_a_worker_whose_cache_is_another_one_is_removed_and_added(change):
    table = table_of(A)
    before = table.get("a")
    other = make_worker("a", **change)
    changes, _, _ = table.reconcile([other])
    assert changes == WorkerChanges(added=(other,), removed=(A,))
    assert table.get("a") is not before


def test_two_workers_of_one_id_are_refused():
    with pytest.raises(ValueError, match="same id"):
        table_of(A, make_worker("a", url="http://b:1"))


def test_candidates_serve_the_model():
    other = make_worker("b", models=(ServedModel("other"),))
    table = table_of(A, other, make_worker("c", models=()))
    assert ids(table) == ["a", "c"]
    assert ids(table, "other") == ["b", "c"]
    assert ids(table, "unheard of") == ["c"]


def test_a_suspect_worker_is_skipped_until_a_probe_succeeds():
    table = table_of(A, B)
    table.observe("a", HealthSign.CONNECT_FAILED)
    assert ids(table) == ["b"]
    table.observe("a", HealthSign.PROBE_OK)
    assert ids(table) == ["a", "b"]


def test_when_all_are_suspect_all_are_tried():
    table = table_of(A, B)
    for worker_id in "ab":
        table.observe(worker_id, HealthSign.CONNECT_FAILED)
    assert ids(table) == ["a", "b"]
    assert ids(table, exclude={"a"}) == ["b"]


def test_a_suspect_is_tried_before_a_worker_that_has_failed_this_request():
    table = table_of(A, B)
    table.observe("b", HealthSign.CONNECT_FAILED)
    assert ids(table, exclude={"a"}) == ["b"]


def test_draining_workers_get_nothing_new_even_when_they_are_the_last():
    table = table_of(A, B)
    table.set_draining("a", True)
    assert ids(table) == ["b"]
    table.set_draining("b", True)
    with pytest.raises(NoWorkers, match="of 2, 2 draining, 0 asleep, 0 tried"):
        table.pool(MODEL)
    table.set_draining("a", False)
    assert ids(table) == ["a"]


def test_draining_survives_a_reconciliation():
    table = table_of(A, B)
    table.set_draining("a", True)
    table.reconcile([A, B, C])
    assert ids(table) == ["b", "c"]


def test_a_sleeping_worker_gets_nothing_even_when_it_is_the_last():
    table = table_of(A, B)
    table.set_asleep("a", True)
    assert ids(table) == ["b"]
    table.set_asleep("b", True)
    with pytest.raises(NoWorkers, match="of 2, 0 draining, 2 asleep, 0 tried"):
        ids(table)
    table.set_asleep("a", False)
    assert ids(table) == ["a"]
    table.set_asleep("nobody", True)


def test_no_candidate_is_explained():
    table = table_of(A)
    with pytest.raises(NoWorkers, match="No worker serves the model 'x'"):
        table.pool("x")
    with pytest.raises(NoWorkers, match="of 1, 0 draining, 0 asleep, 1 tried"):
        table.pool(MODEL, {"a"})


def test_signs_of_unknown_workers_have_no_effect():
    table = table_of(A)
    assert table.observe("z", HealthSign.CONNECT_FAILED) is None
    table.set_draining("z", True)
    assert table.get("a").health is Health.HEALTHY


def test_hash_spaces_are_distinct_and_a_worker_that_does_not_tell_counts_as_sixteen():
    table = table_of(A, B, make_worker("c", block_tokens=64), make_worker("d", block_tokens=None))
    assert table.hash_spaces(MODEL) == [HashSpace(MODEL, 16), HashSpace(MODEL, 64)]
    assert table.hash_spaces("x") == []


def test_the_reference_block_is_the_smallest_of_the_model_even_while_its_worker_is_no_candidate():
    fine, coarse = make_worker("fine", block_tokens=16), make_worker("coarse", block_tokens=32)
    elsewhere = make_worker("elsewhere", block_tokens=8, models=(ServedModel("other"),))
    table = table_of(fine, coarse, elsewhere)
    assert table.pool(MODEL).block_tokens == 16
    assert table.pool(MODEL, exclude={"fine"}).block_tokens == 16
    table.set_draining("fine", True)
    pool = table.pool(MODEL)
    assert ([worker.id for worker in pool.workers], pool.block_tokens, pool.scales) == (["coarse"], 16, (2,))


def test_blocks_are_counted_in_the_smallest_block():
    pool = table_of(make_worker("a", block_tokens=32), make_worker("b", block_tokens=48)).pool(MODEL)
    assert pool.block_tokens == 32
    assert pool.scales == (1.0, 1.5)
    assert pool.spaces == {HashSpace(MODEL, 32): 0b01, HashSpace(MODEL, 48): 0b10}


def test_kept_candidate_sets_are_bounded(monkeypatch):
    monkeypatch.setattr("router.core.workers.POOLS_KEPT", 2)
    table = table_of(make_worker("a", models=()))
    for number in range(10):
        table.pool(f"m{number}")
    assert len(table._pools) <= 2
