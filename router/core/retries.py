"""Whether a failed attempt is made again elsewhere. Which worker it then goes to is the policy's affair."""

from __future__ import annotations


def may_retry(
    *, attempt: int, max_retries: int, retryable: bool, begun: bool, client_gone: bool = False
) -> bool:
    """True when attempt number `attempt` (from 0) may be followed by another one.

    `begun`: a byte of the response body was relayed, so a second answer would garble the first.
    `retryable`: the error says that another worker may do better.
    """
    return retryable and not begun and not client_gone and attempt < max_retries
