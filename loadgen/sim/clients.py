"""Who sends which request when: by the trace's clock, or so many at a time.

Requests that follow each other are a chain: those of one session, or a single one. Within a chain each waits
for the answer to the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from loadgen.traces import TraceRequest

Sending = tuple[float, int]
"""When (seconds), and the number of the request in the trace."""


class Clients(Protocol):
    def begin(self) -> list[Sending]:
        """What is sent without waiting for any answer."""
        ...

    def answered(self, number: int, now: float) -> Sending | None:
        """What is sent because this request has ended, well or not."""
        ...


class OpenLoop:
    """Chains begin at their arrival times, however slow the answers are."""

    def __init__(self, requests: Sequence[TraceRequest], rate_scale: float) -> None:
        """Arrivals come `rate_scale` times as fast as recorded; pauses for thought stay as they are."""
        self._requests = requests
        self._rate_scale = rate_scale
        self._chains = list(chains_of(requests))
        self._next = {before: after for chain in self._chains for before, after in pairwise(chain)}

    def begin(self) -> list[Sending]:
        start = min(request.arrival_seconds for request in self._requests)
        return [
            ((self._requests[chain[0]].arrival_seconds - start) / self._rate_scale, chain[0])
            for chain in self._chains
        ]

    def answered(self, number: int, now: float) -> Sending | None:
        following = self._next.get(number)
        return None if following is None else (now + self._requests[following].think_seconds, following)


class ClosedLoop:
    """A fixed number of clients, each of which sends as soon as it has an answer: no pauses, no arrival
    times."""

    def __init__(self, requests: Sequence[TraceRequest], concurrency: int) -> None:
        self._chains = iter(list(chains_of(requests)))
        self._concurrency = concurrency
        self._rest: dict[int, Iterator[int]] = {}

    def begin(self) -> list[Sending]:
        firsts = (self._take_chain() for _ in range(self._concurrency))
        return [(0.0, number) for number in firsts if number is not None]

    def answered(self, number: int, now: float) -> Sending | None:
        chain = self._rest.pop(number)
        following = next(chain, None)
        if following is None:
            following = self._take_chain()
        else:
            self._rest[following] = chain
        return None if following is None else (now, following)

    def _take_chain(self) -> int | None:
        chain = next(self._chains, None)
        if chain is None:
            return None
        rest = iter(chain)
        first = next(rest)
        self._rest[first] = rest
        return first


def chains_of(requests: Sequence[TraceRequest]) -> Iterator[list[int]]:
    """Numbers of the requests of each chain, chains in the order of their first requests."""
    sessions: dict[str, list[int]] = {}
    chains: list[list[int]] = []
    for number, request in enumerate(requests):
        if request.session in sessions:
            sessions[request.session].append(number)
            continue
        chains.append([number])
        if request.session:
            sessions[request.session] = chains[-1]
    return iter(chains)
