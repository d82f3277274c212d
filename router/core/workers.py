"""The workers that the gateway knows: their slots, health, and which of them may serve a model.

What is booked on them is in `loads`, what they hold in `overlap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from indexer.blocks import HashSpace
from indexer.trust import Trust
from policies.types import Role, Slot, Worker, WorkerId
from router.core.catalogue import Catalogue
from router.core.counters import LoneRequests
from router.core.health import NEXT_HEALTH, Health, HealthSign
from router.core.limits import POOLS_KEPT
from router.core.loads import Booking
from router.core.pools import Part, Pool, hash_space_of
from router.core.prefill import PrefillSpeed
from router.errors import NoWorkers

_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """What a reconciliation did. A worker whose cache is another one now (new address, engine, model or block
    size) is removed and added; `changed` are those that only serve other names or carry another version."""

    added: tuple[Worker, ...] = ()
    changed: tuple[Worker, ...] = ()
    removed: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker as the admin port shows it. Blocks are the worker's own; decode blocks may be fractional
    when prompts were measured in bytes."""

    worker: Worker
    slot: Slot
    health: Health
    draining: bool
    asleep: bool
    trust: Trust
    space: HashSpace
    num_active_requests: int
    active_prefill_tokens: int
    active_decode_blocks: float
    active_output_tokens: int
    num_index_blocks: int
    num_predicted_blocks: int

    @property
    def state(self) -> str:
        """One word: "draining" or "asleep", else the health."""
        if self.draining:
            return "draining"
        return "asleep" if self.asleep else self.health.value

    @property
    def is_up(self) -> bool:
        """Whether it may be chosen without need: neither suspect nor draining nor asleep."""
        return self.health is Health.HEALTHY and not self.draining and not self.asleep


@dataclass(slots=True, eq=False)
class WorkerEntry:
    """A worker while it lives, with what is learnt about it.

    `space`: of its blocks, as its events show them or, before they do, as it told. `sole`: the booking that
    has had the worker to itself since it was made, if there is one. `reports_cached_tokens`: its engine was
    seen to report a number.
    """

    worker: Worker
    slot: Slot
    space: HashSpace
    health: Health = Health.HEALTHY
    draining: bool = False
    asleep: bool = False
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    sole: Booking | None = None
    reports_cached_tokens: bool = False
    lone: LoneRequests = field(default_factory=LoneRequests)

    @property
    def is_up(self) -> bool:
        """Whether it may be chosen without need."""
        return self.health is Health.HEALTHY and not self.draining and not self.asleep


class WorkerTable:
    """Workers by id. `slot_is_free` tells whether nothing remembers a slot's former worker any more."""

    def __init__(self, slot_is_free: Callable[[Slot], bool], hashing: str = "kvgate") -> None:
        self._hashing = hashing
        self._slot_is_free = slot_is_free
        self._entries: dict[WorkerId, WorkerEntry] = {}
        self._by_slot: dict[Slot, WorkerEntry] = {}
        self._pools: dict[tuple[str, Part], Pool] = {}
        self._prefill_pools: dict[tuple[str, str], Pool | None] = {}
        self._spaces: dict[str, list[HashSpace]] = {}
        self.catalogue = Catalogue(())
        self.has_pools = False
        """Whether some worker does only a part of its requests."""
        self.protocols: frozenset[str] = frozenset()
        """By which workers hand over or receive."""

    def __iter__(self) -> Iterator[WorkerEntry]:
        return iter(self._entries.values())

    def get(self, worker_id: WorkerId) -> WorkerEntry | None:
        return self._entries.get(worker_id)

    def of_slot(self, slot: Slot) -> WorkerEntry:
        return self._by_slot[slot]

    def reconcile(
        self, workers: Sequence[Worker]
    ) -> tuple[WorkerChanges, list[WorkerEntry], list[WorkerEntry]]:
        """Makes the table hold exactly these workers; returns the changes, and the entries gone and new."""
        wanted = {worker.id: worker for worker in workers}
        if len(wanted) != len(workers):
            raise ValueError("two workers have the same id")
        gone = [entry for entry in self if not _same_cache(entry.worker, wanted.get(entry.worker.id))]
        for entry in gone:
            del self._entries[entry.worker.id], self._by_slot[entry.slot]
        changed = [worker for worker in wanted.values() if self._update(worker)]
        new = [self._add(worker) for worker in wanted.values() if worker.id not in self._entries]
        self._forget_pools()
        self._spaces.clear()
        self.catalogue = Catalogue(wanted.values())
        self.has_pools = any(worker.role is not Role.BOTH for worker in wanted.values())
        transfers = (worker.transfer for worker in wanted.values() if worker.role is not Role.BOTH)
        self.protocols = frozenset(transfer.protocol for transfer in transfers if transfer is not None)
        removed = tuple(entry.worker for entry in gone)
        added = tuple(entry.worker for entry in new)
        return WorkerChanges(added, tuple(changed), removed), gone, new

    def _update(self, worker: Worker) -> bool:
        entry = self._entries.get(worker.id)
        if entry is None or entry.worker == worker:
            return False
        entry.worker = worker
        return True

    def _add(self, worker: Worker) -> WorkerEntry:
        slot = 0
        while slot in self._by_slot or not self._slot_is_free(slot):
            slot += 1
        entry = WorkerEntry(worker, slot, hash_space_of(worker, self._hashing))
        self._entries[worker.id] = self._by_slot[slot] = entry
        return entry

    def observe(self, worker_id: WorkerId, sign: HealthSign) -> WorkerEntry | None:
        """The worker's next health; None when it is not known (it left meanwhile)."""
        entry = self._entries.get(worker_id)
        if entry and (health := NEXT_HEALTH[entry.health, sign]) is not entry.health:
            entry.health = health
            self._forget_pools()
        return entry

    def set_draining(self, worker_id: WorkerId, draining: bool) -> None:
        if entry := self._entries.get(worker_id):
            entry.draining = draining
            self._forget_pools()

    def move(self, entry: WorkerEntry, space: HashSpace) -> None:
        """From now on its blocks are matched in that space."""
        entry.space = space
        self._forget_pools()
        self._spaces.clear()

    def set_asleep(self, worker_id: WorkerId, asleep: bool) -> None:
        entry = self._entries.get(worker_id)
        if entry and entry.asleep is not asleep:
            entry.asleep = asleep
            self._forget_pools()

    def hash_spaces(self, model: str) -> list[HashSpace]:
        """The distinct spaces of all workers that serve the model, the finest blocks first."""
        if (spaces := self._spaces.get(model)) is None:
            found = {entry.space for entry in self if entry.worker.serves(model)}
            spaces = sorted(
                found, key=lambda space: (space.block_tokens, space.lookahead_tokens, space.base_model)
            )
            _keep(self._spaces, model, spaces)
        return spaces

    def pool(self, model: str, exclude: Collection[WorkerId] = (), part: Part = Part.ANSWER) -> Pool:
        """The candidates for that part of requests for the model. Raises NoWorkers, in words that say why
        there are none."""
        if exclude:
            return self._build_pool(model, exclude, part)
        if (pool := self._pools.get((model, part))) is None:
            pool = self._build_pool(model, (), part)
            _keep(self._pools, (model, part), pool)
        return pool

    def prefill_pool(self, model: str, protocol: str, exclude: Collection[WorkerId] = ()) -> Pool | None:
        """The prefill workers that hand over as `protocol` says; None when there is none that is healthy: a
        prompt has other ways than to try one that is suspect."""
        if exclude:
            return self._build_prefill_pool(model, protocol, exclude)
        key = (model, protocol)
        if key not in self._prefill_pools:
            _keep(self._prefill_pools, key, self._build_prefill_pool(model, protocol, ()))
        return self._prefill_pools[key]

    def _forget_pools(self) -> None:
        self._pools.clear()
        self._prefill_pools.clear()

    def _build_pool(self, model: str, exclude: Collection[WorkerId], part: Part) -> Pool:
        serving = [entry for entry in self if entry.worker.serves(model)]
        open_to_new = [entry for entry in serving if _takes_new(entry, exclude) and part.fits(entry.worker)]
        healthy = [entry for entry in open_to_new if entry.health is Health.HEALTHY]
        # Suspicion is a guess: when it falls on all of them, trying one beats refusing the request.
        members = healthy or open_to_new
        if not members:
            raise NoWorkers(_why_none(model, serving, exclude, part))
        return _pool_of(members, serving)

    def _build_prefill_pool(self, model: str, protocol: str, exclude: Collection[WorkerId]) -> Pool | None:
        serving = [entry for entry in self if entry.worker.serves(model)]
        members = [
            entry
            for entry in serving
            if entry.is_up
            and entry.worker.id not in exclude
            and Part.PREFILL.fits(entry.worker)
            and _hands_over(entry.worker, protocol)
        ]
        return _pool_of(members, serving) if members else None

    def check(self) -> None:
        """Asserts that slots and entries agree."""
        assert {entry.slot: entry for entry in self} == self._by_slot
        assert all(worker_id == entry.worker.id for worker_id, entry in self._entries.items())


def _takes_new(entry: WorkerEntry, exclude: Collection[WorkerId]) -> bool:
    return not entry.draining and not entry.asleep and entry.worker.id not in exclude


def _hands_over(worker: Worker, protocol: str) -> bool:
    return worker.transfer is not None and worker.transfer.protocol == protocol


def _pool_of(members: Sequence[WorkerEntry], serving: Sequence[WorkerEntry]) -> Pool:
    reference = min(entry.space.block_tokens for entry in serving)
    return Pool.of(((entry.worker, entry.slot, entry.space) for entry in members), block_tokens=reference)


def _keep(made: dict[_K, _T], key: _K, value: _T) -> None:
    if len(made) >= POOLS_KEPT:
        made.clear()
    made[key] = value


def _same_cache(known: Worker, now: Worker | None) -> bool:
    """Whether what was learnt of the worker's cache, and booked on it, still holds."""
    return now is not None and _cache_identity(known) == _cache_identity(now)


def _cache_identity(worker: Worker) -> tuple[object, ...]:
    return (
        worker.url,
        worker.engine,
        worker.dp_rank,
        worker.base_model,
        worker.block_tokens,
        worker.num_blocks,
        worker.publishes_events,
    )


def _why_none(model: str, serving: Sequence[WorkerEntry], exclude: Collection[WorkerId], part: Part) -> str:
    if not serving:
        return f"No worker serves the model '{model}'"
    fitting = [entry for entry in serving if part.fits(entry.worker)]
    if not fitting:
        return f"No worker can take a request for the model '{model}': {_LACKING[part]}"
    draining = sum(entry.draining for entry in fitting)
    asleep = sum(entry.asleep for entry in fitting)
    tried = sum(entry.worker.id in exclude for entry in fitting)
    return (
        f"No worker can take a request for the model '{model}': of {len(fitting)}, "
        f"{draining} draining, {asleep} asleep, {tried} tried already"
    )


_LACKING = {
    Part.ANSWER: "it has prefill workers only, and needs one that decodes",
    Part.WHOLE: "its decode workers compute no prompts, and no prefill worker can be asked for this one",
}
