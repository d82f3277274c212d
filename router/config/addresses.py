"""Addresses to listen on: how they are written, and which of them only this machine reaches."""

from __future__ import annotations

import ipaddress

_EVERYWHERE = ("", "0.0.0.0", "::")


def in_brackets(host: str) -> str:
    """As it stands in a URL: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """For a name other than localhost, False: what it resolves to is not asked."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_to(host: str, listening: str) -> bool:
    """Whether connecting to `host` surely ends at a socket that listens on `listening`, ports aside. Other
    names are not looked up."""
    if host == listening or host in _EVERYWHERE:
        return host == listening or is_loopback(listening) or listening in _EVERYWHERE
    if listening in _EVERYWHERE:
        return is_loopback(host)
    return "localhost" in (host, listening) and is_loopback(host) and is_loopback(listening)
