"""Real instances that hand KV on: vLLM's NixlConnector over loopback, ExampleConnector over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.vllm.conftest import VllmInstance, free_port, instance

LEASE_SECONDS = 6
"""For so long a prefill engine keeps KV that is not fetched. It also bounds how long a transfer between idle
engines stands still (on a CPU they miss notices): vLLM's own 30 s would make the tests slow."""

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def nixl_instance(index: int, role: str, environment: Path, logs: Path) -> VllmInstance:
    """UCX keeps to loopback, and the KV to main memory: there is nothing else."""
    side_channel = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
    }
    transport = {"UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo"}
    connector = {
        "kv_connector": "NixlConnector",
        "kv_role": KV_ROLES[role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS},
    }
    return instance(
        index, environment, logs, role=role, flags=_flags(connector), variables=side_channel | transport
    )


def store_instance(index: int, role: str, environment: Path, logs: Path, store: Path) -> VllmInstance:
    """Its prompts are written to `store`, one folder each, and looked up there as whole prompts only."""
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }
    return instance(index, environment, logs, role=role, flags=_flags(connector))


def _flags(connector: dict[str, Any]) -> tuple[str, str]:
    return ("--kv-transfer-config", msgspec.json.encode(connector).decode())
