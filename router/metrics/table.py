"""Every metric of the gateway: name, type, labels, meaning. A test holds `docs/metrics.md` to this table."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

# Seconds. They reach beyond ten minutes where requests may: a histogram that ends too early turns every bad
# day into "+Inf".
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
ITL_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2, 5, 20)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 960, 1920)
DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 0.5, 2)


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` is as exported, so a counter's ends in `_total`; `buckets` are upper bounds, in seconds."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_WORKER_POLICY = ("worker", "policy")

# Counted while requests pass.
REQUESTS = Metric(
    "kvgate_requests_total",
    COUNTER,
    ("worker", "policy", "model", "endpoint", "status", "outcome"),
    "Requests that ended, by the worker that served them last (empty when none did).",
)
DISPATCHES = Metric(
    "kvgate_dispatches_total",
    COUNTER,
    ("worker", "model"),
    "Attempts sent to a worker, retries included.",
)
RETRIES = Metric(
    "kvgate_retries_total",
    COUNTER,
    ("worker", "reason"),
    "Attempts given up in favour of another worker, by the worker that failed.",
)
ERRORS = Metric("kvgate_errors_total", COUNTER, ("kind",), "Error answers that the gateway made itself.")
CLIENT_GONE = Metric(
    "kvgate_client_gone_total",
    COUNTER,
    ("phase",),
    "Clients that left before their answer was complete, by what was going on.",
)
STREAM_ERRORS = Metric(
    "kvgate_stream_errors_total",
    COUNTER,
    ("worker", "placed"),
    "Streams cut short after their first byte; placed: whether an error event could be put in.",
)
TOKEN_FALLBACKS = Metric(
    "kvgate_token_fallbacks_total",
    COUNTER,
    ("reason",),
    "Requests routed by bytes because their tokens could not be had.",
)
EXPECTED_CACHED = Metric(
    "kvgate_expected_cached_tokens_total",
    COUNTER,
    ("worker",),
    "Prompt tokens that the index expected to be cached, in requests whose worker reported its own count.",
)
REPORTED_CACHED = Metric(
    "kvgate_reported_cached_tokens_total",
    COUNTER,
    ("worker",),
    "Prompt tokens that the worker reported as cached, over the same requests.",
)
OVERLAP_LOST = Metric(
    "kvgate_overlap_lost_tokens_total",
    COUNTER,
    ("worker",),
    "Prompt tokens that another candidate had cached beyond those of the worker that was chosen.",
)
DISAGG_DECISIONS = Metric(
    "kvgate_disagg_decisions_total",
    COUNTER,
    ("prefill", "reason"),
    "Requests for decode workers, by where their prompt is computed (remote, local) and why.",
)
HAND_OVER_FAILURES = Metric(
    "kvgate_hand_over_failures_total",
    COUNTER,
    ("worker", "leg", "code"),
    "Legs of hand-overs that failed (leg: prefill, decode), by the worker and the error's code.",
)
PREFILL_LEG = Metric(
    "kvgate_prefill_leg_seconds",
    HISTOGRAM,
    ("worker",),
    "From a prompt's dispatch to a prefill worker to the end of its answer.",
    TTFT_BUCKETS,
)
KV_TRANSFER = Metric(
    "kvgate_kv_transfer_seconds",
    HISTOGRAM,
    ("worker",),
    "From the dispatch of a prompt that a prefill worker has computed to the decode worker's first token.",
    TTFT_BUCKETS,
)
TTFT = Metric(
    "kvgate_ttft_seconds",
    HISTOGRAM,
    _WORKER_POLICY,
    "From a request's arrival to the first token of a stream, or the first byte of another generated answer.",
    TTFT_BUCKETS,
)
ITL = Metric(
    "kvgate_itl_seconds",
    HISTOGRAM,
    _WORKER_POLICY,
    "Between one read of a stream's bytes and the next.",
    ITL_BUCKETS,
)
DURATION = Metric(
    "kvgate_request_duration_seconds",
    HISTOGRAM,
    _WORKER_POLICY,
    "From a request's arrival to the end of its answer.",
    DURATION_BUCKETS,
)
DECISION = Metric(
    "kvgate_decision_seconds",
    HISTOGRAM,
    ("stage",),
    "Time spent before dispatch, by stage: parse the body, get tokens and block hashes, route.",
    DECISION_BUCKETS,
)

# Read from the decision core when somebody asks.
IN_FLIGHT = Metric(
    "kvgate_requests_in_flight",
    GAUGE,
    _WORKER_POLICY,
    "Requests booked on a worker and not ended, under the policy in force.",
)
WORKER_UP = Metric("kvgate_worker_up", GAUGE, ("worker",), "1 while the worker may be chosen, else 0.")
WORKER_TRUST = Metric(
    "kvgate_worker_trust",
    GAUGE,
    ("worker", "level"),
    "1 for the trust level of the worker's overlap (exact, recovering, degraded, predicted), 0 for the rest.",
)
INDEX_BLOCKS = Metric(
    "kvgate_index_blocks", GAUGE, ("worker",), "Blocks that the worker's own events say it holds."
)
PREDICTED_BLOCKS = Metric(
    "kvgate_predicted_blocks", GAUGE, ("worker",), "Blocks that own decisions let expect on the worker."
)
ACTIVE_PREFILL_TOKENS = Metric(
    "kvgate_active_prefill_tokens",
    GAUGE,
    ("worker",),
    "Booked prompt tokens still to be computed, net of the cached ones.",
)
ACTIVE_DECODE_BLOCKS = Metric(
    "kvgate_active_decode_blocks",
    GAUGE,
    ("worker",),
    "Full blocks of booked requests; shared ones count once.",
)
KV_EVENTS = Metric("kvgate_kv_events_total", COUNTER, ("worker",), "KV events received.")
KV_EVENT_GAPS = Metric(
    "kvgate_kv_event_gaps_total", COUNTER, ("worker",), "Gaps in the sequence of KV event messages."
)
KV_REPLAYS = Metric("kvgate_kv_replays_total", COUNTER, ("worker",), "Replays of KV events asked for.")
KV_RESTARTS = Metric(
    "kvgate_kv_restarts_total", COUNTER, ("worker",), "New incarnations seen in the KV event stream."
)
KV_EVENTS_IGNORED = Metric(
    "kvgate_kv_events_ignored_total",
    COUNTER,
    ("worker", "reason"),
    "KV events that do not matter here or were not understood.",
)
KV_ORPHANS = Metric(
    "kvgate_kv_orphans_total",
    COUNTER,
    ("worker",),
    "Stored events that had to wait, since nobody had told of the block before theirs.",
)
KV_OVERREPORTS = Metric(
    "kvgate_kv_overreports_total",
    COUNTER,
    ("worker",),
    "Times that a worker had cached less than its own events had said.",
)
KV_LEARNT_BLOCKS = Metric(
    "kvgate_kv_learnt_blocks",
    GAUGE,
    ("worker",),
    "Blocks that the worker is believed to hold only since it reported them as cached.",
)
PARITY_CHECKS = Metric(
    "kvgate_parity_checks_total",
    COUNTER,
    ("worker", "check", "result"),
    "Checks of a worker's tokens, blocks and cached tokens against ours; result: agree, differ, skipped.",
)
PARITY_DIFFERS = Metric(
    "kvgate_parity_differs",
    GAUGE,
    ("worker", "check"),
    "1 while that check finds that the worker differs, for any model; /workers says why.",
)

KV_DROPPED = Metric(
    "kvgate_index_dropped_blocks_total",
    COUNTER,
    ("worker",),
    "Blocks of the worker that the index gave up to stay within --index-max-bytes.",
)
INDEX_BYTES = Metric(
    "kvgate_index_bytes",
    GAUGE,
    (),
    "Memory that the exact index takes, by the most that its entries come to.",
)

COUNTED = (
    REQUESTS,
    DISPATCHES,
    RETRIES,
    ERRORS,
    CLIENT_GONE,
    STREAM_ERRORS,
    TOKEN_FALLBACKS,
    EXPECTED_CACHED,
    REPORTED_CACHED,
    OVERLAP_LOST,
    DISAGG_DECISIONS,
    HAND_OVER_FAILURES,
    PREFILL_LEG,
    KV_TRANSFER,
    TTFT,
    ITL,
    DURATION,
    DECISION,
)
READ = (
    IN_FLIGHT,
    WORKER_UP,
    WORKER_TRUST,
    INDEX_BLOCKS,
    PREDICTED_BLOCKS,
    ACTIVE_PREFILL_TOKENS,
    ACTIVE_DECODE_BLOCKS,
    KV_EVENTS,
    KV_EVENT_GAPS,
    KV_REPLAYS,
    KV_RESTARTS,
    KV_EVENTS_IGNORED,
    KV_ORPHANS,
    KV_OVERREPORTS,
    KV_LEARNT_BLOCKS,
    PARITY_CHECKS,
    PARITY_DIFFERS,
    KV_DROPPED,
    INDEX_BYTES,
)
METRICS = COUNTED + READ
