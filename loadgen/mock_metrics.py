"""A mock worker's `/metrics`: the series that routers read, under vLLM 0.32's names or SGLang 0.5's.

One model for each data-parallel rank, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.engine import EngineModel

_VLLM_GAUGES = (
    ("vllm:num_requests_running", "num_running"),
    ("vllm:num_requests_waiting", "num_waiting"),
    ("vllm:kv_cache_usage_perc", "kv_usage"),
)
_VLLM_COUNTERS = (
    ("vllm:prefix_cache_queries_total", "prefix_cache_queries"),
    ("vllm:prefix_cache_hits_total", "prefix_cache_hits"),
    ("vllm:prompt_tokens_total", "prompt_tokens"),
    ("vllm:prompt_tokens_cached_total", "prefix_cache_hits"),
    ("vllm:generation_tokens_total", "generation_tokens"),
    ("vllm:num_preemptions_total", "preemptions"),
)
_SGLANG_GAUGES = (
    ("sglang:num_running_reqs", "num_running"),
    ("sglang:num_queue_reqs", "num_waiting"),
    ("sglang:token_usage", "kv_usage"),
)
_SGLANG_COUNTERS = (
    ("sglang:prompt_tokens_total", "prompt_tokens"),
    ("sglang:cached_tokens_total", "prefix_cache_hits"),
    ("sglang:generation_tokens_total", "generation_tokens"),
)


def render_vllm_metrics(
    models: Sequence[EngineModel],
    *,
    model_name: str,
    block_tokens: int | None,
    start_time: float,
    lag_seconds_mean: float,
    lag_seconds_max: float,
) -> str:
    """Prometheus text. `block_tokens`: what is told of their size; `start_time` in Unix seconds; the lags are
    the mock's own, see RealTimeDriver."""
    ranks = [(f'engine="{rank}",model_name="{model_name}"', model) for rank, model in enumerate(models)]
    lines = _series("process_start_time_seconds", "gauge", [("", start_time)])
    for name, attribute in _VLLM_GAUGES:
        lines += _series(name, "gauge", [(labels, getattr(model, attribute)) for labels, model in ranks])
    for name, attribute in _VLLM_COUNTERS:
        lines += _series(
            name, "counter", [(labels, getattr(model.counters, attribute)) for labels, model in ranks]
        )
    finished = [(f'{labels},finished_reason="length"', model.counters.finished) for labels, model in ranks]
    lines += _series("vllm:request_success_total", "counter", finished)
    config = [(_cache_config_labels(rank, model, block_tokens), 1.0) for rank, model in enumerate(models)]
    lines += _series("vllm:cache_config_info", "gauge", config)
    lines += _series("kvgate_mock_lag_seconds_mean", "gauge", [("", lag_seconds_mean)])
    lines += _series("kvgate_mock_lag_seconds_max", "gauge", [("", lag_seconds_max)])
    return "\n".join(lines) + "\n"


def render_sglang_metrics(models: Sequence[EngineModel], *, model_name: str) -> str:
    """Prometheus text. A server of one rank has no label for it, and none tells when its process began."""
    common = f'engine_type="unified",model_name="{model_name}",pp_rank="0",tp_rank="0"'
    ranks = [
        (f'dp_rank="{rank}",{common}' if len(models) > 1 else common, model)
        for rank, model in enumerate(models)
    ]
    lines: list[str] = []
    for name, attribute in _SGLANG_GAUGES:
        lines += _series(name, "gauge", [(labels, getattr(model, attribute)) for labels, model in ranks])
    for name, attribute in _SGLANG_COUNTERS:
        lines += _series(
            name, "counter", [(labels, getattr(model.counters, attribute)) for labels, model in ranks]
        )
    return "\n".join(lines) + "\n"


def _series(name: str, kind: str, samples: Sequence[tuple[str, float]]) -> list[str]:
    return [f"# TYPE {name.removesuffix('_total')} {kind}"] + [
        f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"
        for labels, value in samples
    ]


def _cache_config_labels(rank: int, model: EngineModel, block_tokens: int | None) -> str:
    settings = model.settings
    labels = {
        "block_size": block_tokens,
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": rank,
        "gpu_memory_utilization": "0.92",
        "kv_cache_size_tokens": settings.num_blocks * settings.block_tokens,
        "num_cpu_blocks": "None",
        "num_gpu_blocks": settings.num_blocks,
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    return ",".join(f'{key}="{value}"' for key, value in labels.items())
