"""The configuration in force: plain, immutable values, and the only place where defaults are written.

How values get here (flags, environment, file) is the business of `load`; what each means and may be is said
once, in `options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from indexer.limits import INDEX_BYTES
from router.core.disagg import DisaggRules, Mode
from router.discovery import FleetDefaults

PolicyParameters = Mapping[str, float | int | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One entry of `workers:` in a configuration file; None means: as for the rest of the fleet."""

    url: str
    name: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    role: str = "both"
    bootstrap_port: int | None = None
    kv_address: str | None = None
    connector: str | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every option under the name of its flag. Durations are seconds, sizes bytes; keys stay out of repr."""

    config: str | None = None
    host: str = "0.0.0.0"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 9190
    tls_cert: str | None = None
    tls_key: str | None = None

    worker_urls: tuple[str, ...] = ()
    workers: tuple[WorkerConfig, ...] = ()
    prefill: tuple[WorkerConfig, ...] = ()
    decode: tuple[WorkerConfig, ...] = ()
    kv_connector: str = "nixl"
    kv_events: str | None = None
    kv_replay: str | None = None
    kv_topic: str = ""
    worker_ca: str | None = None
    worker_cert: str | None = None
    worker_key: str | None = None
    worker_insecure: bool = False

    policy: str = "kv"
    policy_parameters: Mapping[str, PolicyParameters] = field(default_factory=dict)
    """By policy name, only what was given; the rest are the policy's own defaults."""
    prefill_policy: str | None = None
    decode_policy: str | None = None
    disagg: str = "conditional"
    disagg_min_tokens: int = 2048
    disagg_ratio: float = 0.7
    disagg_prefill_busy_tokens: int | None = None
    disagg_decode_usage_max: float | None = None
    disagg_fallback: bool = True
    hand_over_lease: float = 30.0
    tokens: str = "auto"
    tokenizer: tuple[str, ...] = ()
    chat_template: tuple[str, ...] = ()
    block_hash: str = "kvgate"
    predicted_ttl: float = 120.0
    bridge_ttl: float = 5.0
    index_max_bytes: int = INDEX_BYTES
    snapshot: str | None = None
    snapshot_interval: float = 60.0
    warm_from: str | None = None
    seed: int = 0

    api_key: tuple[str, ...] = field(default=(), repr=False)
    worker_api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    metrics_without_key: bool = False

    log_level: str = "info"
    access_log: str | None = None

    max_body: int = 64 * 1024 * 1024
    max_connections: int | None = None
    connect_timeout: float = 5.0
    first_byte_timeout: float = 600.0
    idle_timeout: float = 120.0
    request_timeout: float = 1800.0
    client_write_timeout: float = 60.0
    drain_timeout: float = 30.0
    max_retries: int = 2
    early_headers: bool = False

    load_monitor_interval: float = 1.0
    health_check_interval_secs: float = 10.0
    health_check_timeout_secs: float = 5.0

    @property
    def fleet_defaults(self) -> FleetDefaults:
        """What holds for every worker without a value of its own."""
        return FleetDefaults(
            kv_events=self.kv_events,
            kv_replay=self.kv_replay,
            api_key=self.worker_api_key,
            connector=self.kv_connector,
        )

    @property
    def entries(self) -> Mapping[str, tuple[WorkerConfig, ...]]:
        """Workers with values of their own, by the option that names them."""
        return {"workers": self.workers, "prefill": self.prefill, "decode": self.decode}

    @property
    def has_workers(self) -> bool:
        return bool(self.worker_urls) or any(self.entries.values())

    @property
    def disagg_rules(self) -> DisaggRules:
        return DisaggRules(
            mode=Mode(self.disagg),
            min_tokens=self.disagg_min_tokens,
            ratio=self.disagg_ratio,
            prefill_busy_tokens=self.disagg_prefill_busy_tokens,
            decode_usage_max=self.disagg_decode_usage_max,
            fallback=self.disagg_fallback,
        )

    def parameters_for(self, policy: str) -> PolicyParameters:
        """What was configured for that policy, whether or not it is the one in force."""
        return self.policy_parameters.get(policy, {})
