"""The bounds of this package, each with its reason."""

PROBE_CONNECTIONS = 256
"""Connections for probes, metrics and tokenization of the whole fleet."""

PROBE_IDLE_SECONDS = 4.0
"""uvicorn closes idle connections after 5 s; below that a kept one is seldom stale."""

PROBE_SECONDS = 5.0
"""For each call of a probe. A busy engine answers such calls between two steps."""

MODELS_BYTES = 4 * 1024 * 1024
"""`/v1/models` of a server with thousands of adapters."""

SERVER_INFO_BYTES = 4 * 1024 * 1024
"""SGLang's server info repeats all settings for every rank: about 10 KB a rank."""

METRICS_BYTES = 16 * 1024 * 1024
"""Engines write 50 to 200 KB; one with a thousand adapters in labels, some MB."""

SMALL_BYTES = 64 * 1024
"""Version, health, the tokens of one word."""

LINES_PER_TURN = 500
"""Lines of metrics merged before other tasks get a turn: about 1 ms. The texts of a fleet have tens of
thousands."""

BOOTSTRAP_BYTES = 1 << 20
"""Of a bootstrap server's answer: an engine for each data-parallel rank, with its workers' addresses."""

ENGINE_IDS_KEPT = 10_000
"""Of prefill workers, those that have left included; beyond it each is asked once more."""
