"""What the core knows of its workers, and how it learns it: the half of RoutingCore without requests.

Requests, decisions and bookings are in `routing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from indexer.adapters import Adapter
from indexer.blocks import HashSpace
from indexer.feed import KvFeed
from indexer.parity import Check, ParityState, Subject
from indexer.parity import Outcome as ParityOutcome
from policies.types import Slot, Worker, WorkerId
from router.core.catalogue import Resolution
from router.core.health import HealthSign
from router.core.loads import ActiveSequences
from router.core.overlap import Beliefs
from router.core.parity import ParityChecks
from router.core.planning import Planner
from router.core.timekeeper import Timekeeper
from router.core.transfers import TransferTimes
from router.core.workers import WorkerChanges, WorkerEntry, WorkerTable, WorkerView


class FleetState:
    """Everything that is kept by worker. `now` is monotonic seconds."""

    def __init__(
        self,
        *,
        predicted_ttl: float,
        bridge_ttl: float,
        index_bytes: int,
        hashing: str,
        adapters: Mapping[str, Adapter],
    ) -> None:
        self._beliefs = Beliefs(
            predicted_ttl=predicted_ttl,
            bridge_ttl=bridge_ttl,
            hashing=hashing,
            index_bytes=index_bytes,
            adapters=adapters,
        )
        self._parity = ParityChecks(self._beliefs.feed)
        self._workers = WorkerTable(self._beliefs.is_free, hashing)
        self._loads = ActiveSequences()
        self._timekeeper = Timekeeper(self._loads)
        self._transfers = TransferTimes()
        self._planner = Planner(self._workers, self._loads, self._beliefs, self._timekeeper)

    @property
    def feed(self) -> KvFeed:
        """Where the shell puts the workers' KV events."""
        return self._beliefs.feed

    @property
    def has_pools(self) -> bool:
        """Whether some worker does only a part of its requests."""
        return self._workers.has_pools

    @property
    def hand_over_protocols(self) -> frozenset[str]:
        """By which prefill workers hand over, and decode workers receive."""
        return self._workers.protocols

    # Workers

    def reconcile(self, workers: Sequence[Worker], *, now: float) -> WorkerChanges:
        """Makes the fleet exactly these workers. What goes takes its index and its bookings along.

        Two workers of one id raise ValueError.
        """
        changes, gone, new = self._workers.reconcile(workers)
        for entry in gone:
            self._beliefs.remove(entry.slot)
            for booking in self._loads.remove_worker(entry.slot):
                self._transfers.ended(booking.received)
            self._timekeeper.remove_worker(entry.slot)
            self._parity.remove(entry.slot)
        for entry in new:
            self._beliefs.add(entry.slot, entry.worker)
            self._loads.add_worker(entry.slot)
            self._timekeeper.add_worker(entry.slot, entry.worker)
            self._parity.add(entry.slot, entry.worker, entry.space)
        base_models = {worker.base_model for worker in workers}
        self._planner.keep_ratios_of(base_models)
        self._transfers.keep(base_models)
        return changes

    def observe_health(self, worker_id: WorkerId, sign: HealthSign, *, now: float) -> None:
        """No effect for a worker that has left."""
        entry = self._workers.observe(worker_id, sign)
        if entry and sign is HealthSign.RESTARTED:
            self._beliefs.forget_predictions(entry.slot)
            self._parity.restarted(entry.slot)
            self._workers.set_asleep(worker_id, False)

    def adopt_layout(self, worker_id: WorkerId) -> HashSpace | None:
        """Match a worker by blocks such as its events show, when they are not those that were believed.

        What its events have taught stays. Returns the space that it leaves, None when nothing changes.
        """
        entry = self._workers.get(worker_id)
        layout = self.feed.layout(entry.slot) if entry else None
        if entry is None or layout is None:
            return None
        former = entry.space
        space = former._replace(block_tokens=layout.block_tokens, lookahead_tokens=layout.lookahead_tokens)
        if space == former:
            return None
        self._beliefs.expect(entry.slot, layout)
        self._loads.recut(entry.slot, former.block_tokens, space.block_tokens)
        self._workers.move(entry, space)
        self._timekeeper.set_capacity(entry.slot, entry.worker.num_blocks, space.block_tokens)
        self._parity.moved(entry.slot, space)
        return former

    def refuse_events(self, worker_id: WorkerId, reason: str) -> None:
        """A publishing worker's event endpoint can't be opened: it is predicted. "" once it is open."""
        if (entry := self._workers.get(worker_id)) and self._beliefs.has_events(entry.slot):
            self._beliefs.refuse(entry.slot, reason)

    def set_draining(self, worker_id: WorkerId, draining: bool, *, now: float) -> None:
        """A draining worker finishes what it has and gets nothing new."""
        self._workers.set_draining(worker_id, draining)

    def set_asleep(self, worker_id: WorkerId, asleep: bool, *, now: float) -> None:
        """A sleeping worker gets nothing; its engine would refuse it."""
        self._workers.set_asleep(worker_id, asleep)

    def cache_emptied(self, worker_id: WorkerId) -> None:
        """Its engine has confirmed that its cache is empty, which its events tell only with its next step."""
        if entry := self._workers.get(worker_id):
            self._beliefs.forget_predictions(entry.slot)
            self._beliefs.feed.reset(entry.slot)

    def observe_tokens(self, worker_id: WorkerId, model: str, outcome: ParityOutcome, note: str = "") -> None:
        """What came of comparing the worker's tokens of a probe with ours; no effect for one that has
        left."""
        if entry := self._workers.get(worker_id):
            subject = Subject(model, self._workers.catalogue.adapter_of(model))
            self._parity.state(entry.slot).note(Check.TOKENS, subject, outcome, note)

    def parity(self, worker_id: WorkerId) -> ParityState | None:
        """What was found of the worker so far; None for one that has left."""
        entry = self._workers.get(worker_id)
        return self._parity.state(entry.slot) if entry else None

    def workers(self) -> list[WorkerView]:
        return [self._view(entry) for entry in self._workers]

    def worker(self, worker_id: WorkerId) -> WorkerView | None:
        entry = self._workers.get(worker_id)
        return self._view(entry) if entry else None

    def slot_of(self, worker_id: WorkerId) -> Slot | None:
        entry = self._workers.get(worker_id)
        return entry.slot if entry else None

    def _view(self, entry: WorkerEntry) -> WorkerView:
        slot, booked = entry.slot, self._loads.of_worker(entry.slot)
        return WorkerView(
            worker=entry.worker,
            slot=slot,
            health=entry.health,
            draining=entry.draining,
            asleep=entry.asleep,
            trust=self._beliefs.trust(slot),
            space=entry.space,
            num_active_requests=len(booked.bookings),
            active_prefill_tokens=booked.prefill_tokens,
            active_decode_blocks=self._loads.num_blocks(
                slot, self._planner.token_ratio(entry.space.base_model)
            ),
            active_output_tokens=booked.output_tokens,
            num_index_blocks=self._beliefs.num_index_blocks(slot),
            num_predicted_blocks=self._beliefs.num_predicted_blocks(slot),
        )

    # Models

    def models(self) -> tuple[str, ...]:
        """Every name that a worker answers to, sorted."""
        return self._workers.catalogue.names

    def resolve(self, model: str | None) -> Resolution:
        """What a request's model means. Raises NoWorkers, ModelRequired or UnknownModel."""
        return self._workers.catalogue.resolve(model)

    def hash_spaces(self, model: str) -> list[HashSpace]:
        """The spaces in which a prompt for this model must be hashed; one for each distinct block size."""
        return self._workers.hash_spaces(model)
