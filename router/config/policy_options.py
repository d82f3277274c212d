"""What the policies contribute to the table of options: their names and the parameters of `kv`."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.values import Value, boolean, number

POLICY_NAMES = ("random", "round_robin", "least_loaded", "power_of_two", "kv")
POLICY_ALIASES = {"roundrobin": "round_robin", "kvaware": "kv", "kv_aware": "kv", "prefixaware": "kv"}


@dataclass(frozen=True, slots=True)
class KvOption:
    """One parameter of the kv policy as an option."""

    name: str
    value: Value
    default: float | bool
    help: str


KV_OPTIONS = (
    KvOption("overlap_score_credit", number(0), 1.0, "Worth of one block cached on the device."),
    KvOption("overlap_score_credit_decay", number(0), 0.0, "How quickly locality yields to backlog."),
    KvOption("prefill_load_scale", number(0), 1.0, "Weight of prefill work."),
    KvOption("host_cache_hit_weight", number(0, 1), 0.75, "Worth of a block cached in host memory."),
    KvOption("disk_cache_hit_weight", number(0, 1), 0.25, "Worth of a block cached on disk."),
    KvOption("active_request_weight", number(0), 0.0, "Blocks that one active request counts for."),
    KvOption("temperature", number(0), 0.0, "Above 0: softmax over the costs."),
    KvOption("track_prefill_tokens", boolean(), True, "Count booked prefill work."),
    KvOption("track_active_blocks", boolean(), True, "Count the blocks of active requests."),
    KvOption("assume_kv_reuse", boolean(), True, "Count blocks shared by active requests once."),
)


def parameter_values(policy: str) -> dict[str, Value]:
    """What the parameters of that policy may be, by name."""
    return {option.name: option.value for option in KV_OPTIONS} if policy == "kv" else {}
