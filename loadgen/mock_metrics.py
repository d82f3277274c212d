"""A mock worker's `/metrics`: the series that routers read, under vLLM 0.32's names."""

from __future__ import annotations

from loadgen.engine import EngineModel

_COUNTERS = (
    ("vllm:prefix_cache_queries_total", "prefix_cache_queries"),
    ("vllm:prefix_cache_hits_total", "prefix_cache_hits"),
    ("vllm:prompt_tokens_total", "prompt_tokens"),
    ("vllm:prompt_tokens_cached_total", "prefix_cache_hits"),
    ("vllm:generation_tokens_total", "generation_tokens"),
    ("vllm:num_preemptions_total", "preemptions"),
)


def render_metrics(
    model: EngineModel, *, model_name: str, start_time: float, lag_seconds_mean: float, lag_seconds_max: float
) -> str:
    """Prometheus text. `start_time` is in Unix seconds; the lags are the mock's own, see RealTimeDriver."""
    labels = f'{{engine="0",model_name="{model_name}"}}'
    counters = model.counters
    lines = _series("process_start_time_seconds", "gauge", "", start_time)
    lines += _series("vllm:num_requests_running", "gauge", labels, model.num_running)
    lines += _series("vllm:num_requests_waiting", "gauge", labels, model.num_waiting)
    lines += _series("vllm:kv_cache_usage_perc", "gauge", labels, model.kv_usage)
    for name, attribute in _COUNTERS:
        lines += _series(name, "counter", labels, float(getattr(counters, attribute)))
    reason = f'{{engine="0",finished_reason="length",model_name="{model_name}"}}'
    lines += _series("vllm:request_success_total", "counter", reason, counters.finished)
    lines += _series("vllm:cache_config_info", "gauge", _cache_config_labels(model), 1.0)
    lines += _series("kvgate_mock_lag_seconds_mean", "gauge", "", lag_seconds_mean)
    lines += _series("kvgate_mock_lag_seconds_max", "gauge", "", lag_seconds_max)
    return "\n".join(lines) + "\n"


def _series(name: str, kind: str, labels: str, value: float) -> list[str]:
    return [f"# TYPE {name.removesuffix('_total')} {kind}", f"{name}{labels} {float(value)!r}"]


def _cache_config_labels(model: EngineModel) -> str:
    settings = model.settings
    labels = {
        "block_size": settings.block_tokens,
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "kv_cache_size_tokens": settings.num_blocks * settings.block_tokens,
        "num_cpu_blocks": "None",
        "num_gpu_blocks": settings.num_blocks,
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
