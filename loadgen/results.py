"""What came of one request under load: filled in by the client, read by the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ERRORS_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """What came of one request; times in seconds. `error` is None for an answer that came whole."""

    id: str
    status: int = 0
    error: str | None = None
    worker: str = ""
    """From the gateway's header; empty when a worker was asked directly."""
    ttft: float | None = None
    """From sending to the first event with a token."""
    token_gaps: list[float] = field(default_factory=list)
    """Between tokens; tokens that one read brought share its gap evenly."""
    duration: float = 0.0
    late: float = 0.0
    """How long after its time the request left: the load generator's own lag."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    """The server's own counts; None for one that it did not tell."""


def some_errors(results: Sequence[RequestResult]) -> list[str]:
    """A few of the different errors, in words; none when all went well."""
    return sorted({result.error for result in results if result.error is not None})[:ERRORS_SHOWN]
