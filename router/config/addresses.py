"""Addresses to listen on: how they are written, and which of them only this machine reaches."""

from __future__ import annotations

import ipaddress


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
