"""Dialers for tests that are not about dialing."""

from __future__ import annotations

from router.dialing import Dialer
from router.host_names import HostNames
from tests.support.certificates import system_trust


def plain_dialer() -> Dialer:
    """One for which time stands still."""
    return Dialer(system_trust(), HostNames(lambda: 0.0))
