"""The vocabulary of a routing decision: workers, requests, columns, choices.

Plain values only. Nothing here knows the index, the network or a clock; `router.core` fills these in and
policies read them. What is made for every request is not frozen: each field of a frozen dataclass is set by a
call, 0.1 us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from policies.engine_time import PrefillTime, StepTime

WorkerId = str
"""A configured name, else `host:port` (`host:port@rank` for a data-parallel rank), else a socket's path."""

Slot = int
"""Small dense integer of a worker while it lives; the bit position in every bitmask."""


class Role(StrEnum):
    """Which part of a request a worker may run."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name under which a worker answers. `parent` is the base model's name for an adapter, else None."""

    name: str
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How KV blocks leave a worker's engine, or reach it.

    `protocol`: a row of `router.hand_over.PROTOCOLS`. `host`, `port`: where the other side reaches its
    bootstrap server or its KV socket, as the protocol has it; "" is the host of its URL. `num_ranks`:
    data-parallel ranks behind that address.
    """

    protocol: str
    host: str = ""
    port: int | None = None
    num_ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One routable engine rank, as its probe described it.

    `block_tokens` (tokens per KV block) and `num_blocks` (capacity) are None when the worker did not tell;
    such a worker is served in predictive mode.
    """

    id: WorkerId
    url: str
    models: tuple[ServedModel, ...] = ()
    engine: str = "unknown"
    version: str = ""
    role: Role = Role.BOTH
    dp_rank: int | None = None
    block_tokens: int | None = None
    num_blocks: int | None = None
    publishes_events: bool = False
    """Whether KV events are expected from it: False means predictive mode."""
    replays_events: bool = False
    """Whether its publisher has a replay socket, so that missed events can be asked for again."""
    transfer: Transfer | None = None
    """None where a prompt computed here cannot be handed over, nor be received."""
    prefills_alone: bool = True
    """False for a decode server that computes no prompt, so that every request needs a prefill worker."""

    @property
    def base_model(self) -> str:
        """The first name without a parent: what seeds the block hashes of this worker."""
        return next((model.name for model in self.models if model.parent is None), "")

    def serves(self, model: str) -> bool:
        """Whether it answers to that name; a worker that did not tell its models is asked for any."""
        return not self.models or any(served.name == model for served in self.models)


@dataclass(slots=True, kw_only=True)
class RoutingRequest:
    """What a policy may know about a request. Tokens and hashes stay with the core."""

    id: str
    model: str
    num_prompt_tokens: int = 0
    """Exact, or an estimate when the prompt was not tokenised; 0 when unknown."""
    session: str | None = None
    stream: bool = False
    client_request_id: str = ""
    """What the client calls it (`x-request-id`). May repeat: only for finding its decisions."""
    names_rank: bool = True
    """Whether an engine of several data-parallel ranks obeys when it is told one for such a request."""
    stays_whole: str = ""
    """Why its prompt can't be computed on one worker and decoded on another; "" when it can."""


@dataclass(slots=True, kw_only=True)
class EngineTimes:
    """What is learnt of the candidates' speed, and what of their time is spoken for; rows as in Candidates.

    Tokens are those of active requests, prompts and what was generated.
    """

    prefill: Sequence[PrefillTime]
    step: Sequence[StepTime]
    wait_ms: Sequence[float]
    """Until the prefill that was booked is expected to be done."""
    num_decoding: Sequence[int]
    """Requests whose prompt is computed."""
    decoding_tokens: Sequence[int]
    resident_tokens: Sequence[int]
    """Of all requests, shared prefixes counted for each."""
    free_tokens: Sequence[float]
    """Room for tokens, shared prefixes counted once. Below 0: more than fits; infinite: capacity unknown."""
    observed_step_ms: Sequence[float]
    """Mean gap between the tokens of a stream, prefill of others included; 0 before any was seen."""
    mean_output_tokens: float
    arrivals_per_ms: float
    """Of requests, for each candidate."""
    batched_tokens: int
    """The most tokens of prefill in one step."""
    handed_over_ms: Sequence[float | None] | None = None
    """Until the first token where a prefill worker computes the prompt, which is told of rows that would have
    it computed so; None: the row computes it itself. No column: all do."""


@dataclass(slots=True, kw_only=True)
class Candidates:
    """The eligible workers as parallel columns; row i of every column is the same worker.

    Blocks are reference blocks (the smallest block size of the model's workers) and may be fractional.
    Columns that the policy did not ask for (`Needs`) hold zeros.
    """

    workers: Sequence[Worker]
    slots: Sequence[Slot]
    block_tokens: int
    """Tokens of a reference block."""
    prompt_blocks: float
    """Blocks of the new prompt: tokens / block_tokens, not rounded."""
    device_overlap: Sequence[float]
    """Leading prompt blocks resident on the device."""
    host_overlap: Sequence[float]
    """Blocks held in host memory that continue the device prefix."""
    disk_overlap: Sequence[float]
    """Blocks held on disk that continue the device and host prefix."""
    active_prefill_blocks: Sequence[float]
    """Booked prefill work that is not finished, net of the cached tokens of its requests."""
    potential_decode_blocks: Sequence[float]
    """Blocks of active requests after this one joined; blocks shared by active requests count once."""
    num_active_requests: Sequence[int]
    """Booked requests that have not ended."""
    num_held_blocks: Sequence[int]
    """Blocks that the index believes the worker holds, rounded down; for breaking ties."""
    served_last_row: int | None = None
    """Row of the worker that served this prefix last, for breaking ties."""
    times: EngineTimes | None = None
    """None where the policy did not ask for them."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def prompt_tokens(self) -> float:
        return self.prompt_blocks * self.block_tokens

    @property
    def held_blocks_of_prompt(self) -> Sequence[float]:
        """Leading prompt blocks that each row holds on whichever tier."""
        tiers = zip(self.device_overlap, self.host_overlap, self.disk_overlap, strict=True)
        return [device + host + disk for device, host, disk in tiers]


@dataclass(slots=True)
class Choice:
    """A policy's answer: the row, the cost of every row (lower is better; empty when it has none), why.

    `terms`: what each row's cost is the sum of, in the order of `term_names`, where a policy tells.
    """

    row: int
    costs: Sequence[float] = ()
    reason: str = ""
    term_names: Sequence[str] = ()
    terms: Sequence[Sequence[float]] = ()


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Whether a prompt is computed on a prefill worker (remote), or where it is decoded (local), and why.

    `reason`: a word of `router.core.disagg.Reason`. `effective_tokens`: prompt tokens that the decode worker
    does not hold, weighed by tier. `times_ms`: what was compared, by name; empty unless the mode compares
    times.
    """

    is_remote: bool
    reason: str
    mode: str
    effective_tokens: float
    times_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Decision:
    """A choice made durable: what was decided for one attempt of one request, with its inputs."""

    request_id: str
    attempt: int
    worker: Worker
    slot: Slot
    policy: str
    reason: str
    now: float
    num_prompt_tokens: int
    expected_cached_tokens: int
    """What the chosen worker should report as cached, by the index; see RoutingCore."""
    trust: str
    """Trust level of the chosen worker's overlap when the decision was made."""
    candidates: Candidates
    choice: Choice
    client_request_id: str = ""
    details: Mapping[str, int | str] = field(default_factory=dict)
    """`unit` of the prompt, `exact_blocks` (by the worker's own events alone), `booked_prefill_tokens`,
    `overlap_lost_tokens`: how many more the best holder among the candidates had cached, 0 when the policy
    looked no overlap up, and `trust_reason`: why the level is not exact, or what it lacks."""
    verdict: Verdict | None = None
    """None where the model has no prefill workers, or the chosen worker is a whole one."""
    prefill: Decision | None = None
    """Of the leg that computes the prompt, when that is another worker's."""
