"""Which ways of handing over the mock workers know; one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadgen.mock_bootstrap import BootstrapConnector
from loadgen.mock_hand_over import Connector, Site
from loadgen.mock_mooncake import MooncakeConnector
from loadgen.mock_nixl import NixlConnector
from loadgen.mock_store import StoreConnector
from policies.types import Role

CONNECTORS: Mapping[str, Callable[[Site], Connector]] = {
    "nixl": NixlConnector,
    "mooncake": MooncakeConnector,
    "store": StoreConnector,
}
"""vLLM's."""


def connector_of(site: Site, engine: str) -> Connector:
    """A worker that does everything itself has none."""
    if site.role is Role.BOTH:
        return Connector(site)
    return BootstrapConnector(site) if engine == "sglang" else CONNECTORS[site.hand_over.connector](site)
