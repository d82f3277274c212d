"""Hand-over between a fleet's mock engines: what all protocols share.

A connector is what one worker's process has of a protocol while it lives; a passage is what one request does
with it. `Fabric` is the network between the fleet's engines: addresses are names in it, so engines of another
process are unreachable. One file per protocol beside this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from loadgen.mock_api import ApiError, GenerationRequest
from loadgen.mock_ranks import MockRank
from loadgen.sequences import TokenSequence
from loadgen.transfer import TransferModel, transfer
from policies.types import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverConfig:
    """`connector`: vLLM's, a row of `CONNECTORS`; SGLang has one of its own."""

    connector: str = "nixl"
    transfer: TransferModel = field(default_factory=TransferModel)
    lease_seconds: float = 30.0
    """vLLM's `kv_lease_duration`: how long a prefill worker keeps blocks that nobody fetches."""
    handshake_seconds: float = 5.0
    """Until vLLM's decode engine gives up on a prefill engine that it can't reach."""
    meeting_seconds: float = 300.0
    """Until one side gives up on the other where both must come (SGLang's bootstrap timeout)."""
    bootstrap_port: int = 8998
    """Of prefill worker 0; prefill worker i: + i. 0: any."""


@dataclass(slots=True)
class HandOverCounters:
    """Of one worker over all its incarnations. A gateway that does everything right leaves `poisoned`, `died`
    and `plain_refused` at 0."""

    transfers: int = 0
    """Prompts that it received."""
    transferred_tokens: int = 0
    failed_transfers: int = 0
    leases_expired: int = 0
    """Prompts that it had computed and nobody fetched in time."""
    poisoned: int = 0
    """Requests answered from KV that need not be of their prompt: a real engine would answer nonsense, and
    announce it under this prompt's hashes."""
    died: int = 0
    """How often a request has killed the engine."""
    plain_refused: int = 0
    """Requests without the fields that this engine can't do without."""


@dataclass(slots=True)
class HandOverFaults:
    """Which of them are to happen, how often; None: always."""

    left: dict[str, int | None] = field(default_factory=dict)
    dropped_parameter: str | None = None
    """None: all of them."""
    slowness: float = 1.0

    def take(self, name: str) -> bool:
        """Whether it happens now."""
        if name not in self.left:
            return False
        count = self.left[name]
        if count is not None:
            if count <= 1:
                del self.left[name]
            else:
                self.left[name] = count - 1
        return True


class Site(Protocol):
    """The worker around a connector."""

    index: int
    role: Role
    ranks: Sequence[MockRank]
    hand_over: HandOverConfig
    hand_over_counters: HandOverCounters
    hand_over_faults: HandOverFaults
    fabric: Fabric

    @property
    def address(self) -> str:
        """Host name or IP."""
        ...

    @property
    def bootstrap_port(self) -> int | None: ...

    def crash(self, spare: asyncio.Transport | None) -> None:
        """The engine dies, as soon as the request in hand is answered."""
        ...


class Fabric:
    """What engines of one fleet find each other by; each protocol keeps its own names."""

    def __init__(self) -> None:
        self.names: dict[tuple[object, ...], Any] = {}
        self.stored: set[int] = set()
        """Hashes of blocks in the shared store."""


class Passage:
    """One request's way through a worker. This one neither comes from another worker nor goes to one."""

    async def receive(self) -> None:
        """Before the engine gets it: until its KV is here. Raises ApiError when it does not come."""

    def computed(self) -> None:
        """It has its last token."""

    async def deliver(self) -> None:
        """Behind its last token, before its answer ends. Raises ApiError."""

    def members(self) -> Mapping[str, Any]:
        """What an answer that is no stream has besides."""
        return {}

    def close(self) -> None:
        """It ended, well or not."""


NO_PASSAGE = Passage()


@dataclass(slots=True, kw_only=True)
class Arrival:
    """A request as a connector meets it."""

    rank: MockRank
    sequence: TokenSequence
    wanted: GenerationRequest
    request_id: str
    """From its header, or made up."""
    transport: asyncio.Transport | None

    @property
    def prompt(self) -> list[int]:
        return self.sequence.tokens[: self.sequence.num_prompt_tokens]


class Connector:
    """None: requests are answered where they arrive."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def start(self) -> None:
        """Its listeners, if it has any."""

    async def stop(self) -> None: ...

    def passage(self, arrival: Arrival) -> Passage:
        """Raises ApiError for what can't be served."""
        del arrival
        return NO_PASSAGE


class Held:
    """A computed prompt whose blocks wait for another engine, until its lease ends."""

    def __init__(self, site: Site, arrival: Arrival) -> None:
        self.rank = arrival.rank
        self.prompt = arrival.prompt
        self.cached_tokens = arrival.sequence.cached_tokens or 0
        self.block_ids = list(arrival.sequence.block_ids)
        self.slowness = site.hand_over_faults.slowness
        self.has_expired = False
        self._sequence = arrival.sequence
        self._site = site
        lease = 0.0 if site.hand_over_faults.take("lease_expired") else site.hand_over.lease_seconds
        self._timer = asyncio.get_running_loop().call_later(lease, self._expire)
        if not lease:
            self._expire()

    def release(self) -> None:
        """Again, or behind the lease: no effect."""
        self._timer.cancel()
        self.rank.model.release(self._sequence)

    def renew(self) -> None:
        """Whoever fetches it keeps the lease alive, by heartbeats."""
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._site.hand_over.lease_seconds, self._expire)

    def _expire(self) -> None:
        self._timer.cancel()
        if self.rank.model.release(self._sequence):
            self.has_expired = True
            self._site.hand_over_counters.leases_expired += 1


class Offer(Passage):
    """A prompt that is computed for another engine: its blocks are held from its last token on."""

    def __init__(self, site: Site, arrival: Arrival) -> None:
        self._site = site
        self._arrival = arrival
        self._held: Held | None = None
        arrival.sequence.is_handed_over = True

    def computed(self) -> None:
        self._held = Held(self._site, self._arrival)

    def close(self) -> None:
        if self._held is None:  # nobody will learn of it
            self._arrival.rank.model.release(self._arrival.sequence)


async def carry(site: Site, arrival: Arrival, held: Held) -> None:
    """Until the blocks that the receiver (`site`) lacks are there. Raises ApiError."""
    num_tokens = max(0, len(held.prompt) - arrival.rank.model.held_tokens(arrival.sequence))
    now = perf_counter()
    ends_at = transfer(site.hand_over.transfer, num_tokens, held.rank.port, arrival.rank.port, now=now)
    await asyncio.sleep((ends_at - now) * held.slowness * site.hand_over_faults.slowness)
    if site.hand_over_faults.take("transfer_fails"):
        raise transfer_failed(site)
    site.hand_over_counters.transfers += 1
    site.hand_over_counters.transferred_tokens += num_tokens
    arrival.sequence.transferred_tokens = len(held.prompt)


def transfer_failed(site: Site) -> ApiError:
    """Counts it."""
    site.hand_over_counters.failed_transfers += 1
    return internal_error()


def internal_error() -> ApiError:
    """All that vLLM tells of what went wrong inside."""
    return ApiError(500, "Internal server error", kind="InternalServerError")


def check_fits(site: Site, arrival: Arrival, held: Held) -> None:
    """A longer prompt than the one computed kills vLLM's decode engine, another poisons its cache."""
    prompt = arrival.prompt
    if len(prompt) > len(held.prompt):
        site.crash(arrival.transport)
        raise internal_error()
    if prompt != held.prompt:
        site.hand_over_counters.poisoned += 1


async def hang_until_death(site: Site) -> None:
    """vLLM's scheduler waits for KV that nobody fetches; the abort raises in it, and it dies."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        site.crash(None)
