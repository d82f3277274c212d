"""Do the gateway and a worker make the same tokens of the same text? Asked at start and now and then.

Fixed probes are tokenized by the worker and by whoever makes the gateway's tokens: its own tokenizer, or,
with tokens from the workers, the other workers of the model, any of which may be asked for a prompt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from indexer.parity import Outcome
from policies.types import WorkerId
from router.core.routing import RoutingCore
from router.engines import ENGINES, WorkerSessions
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import SMALL_BYTES
from router.engines.tokenize import TOKENIZE_PATH
from router.fleet.limits import TOKEN_PARITY_RETRY_SECONDS, TOKEN_PARITY_SECONDS
from router.fleet.member import Member
from router.tasks import start_task
from router.tokens.local.differences import likely_cause
from router.tokens.probe import PROBES, ProbeTokens
from router.wire.endpoints import Protocol

Ids = tuple[int, ...]


@dataclass(slots=True)
class _Asked:
    """A member's answers, by the shape of the probe. `ask_at`: when to ask again, `due_at`: when to compare
    again."""

    member: Member
    model: str
    start_time: float | None
    answers: dict[Protocol, Ids] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    """Tokens as the worker spells them."""
    problem: str = ""
    """Why it could not be asked."""
    ask_at: float = 0.0
    due_at: float = 0.0
    task: asyncio.Task[None] | None = None


class TokenParity:
    """`source` is set once there is one; before that nothing is compared."""

    def __init__(self, core: RoutingCore, sessions: WorkerSessions, clock: Callable[[], float]) -> None:
        self.source: object | None = None
        self._core = core
        self._sessions = sessions
        self._clock = clock
        self._asked: dict[WorkerId, _Asked] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [asked.task for asked in self._asked.values() if asked.task is not None]

    def look(self, member: Member, members: Sequence[Member]) -> None:
        """Begin a comparison when one is due. `members` are all that there are."""
        facts = member.watch.facts
        if self.source is None or facts is None or member.watch.error or not self._matters(member):
            return
        model = next((each.name for each in facts.models if each.parent is None), "")
        asked = self._asked.get(member.id)
        if asked is None or (asked.model, asked.start_time) != (model, facts.start_time):
            self._keep({each.id for each in members})
            asked = self._asked[member.id] = _Asked(member, model, facts.start_time)
        if asked.task is None and self._clock() >= asked.due_at:
            asked.task = start_task(self._compare(asked), f"compare tokens with {member.id}")

    def _matters(self, member: Member) -> bool:
        return self._core.needs.overlap and any(rank.worker.publishes_events for rank in member.ranks)

    def _keep(self, member_ids: set[WorkerId]) -> None:
        for gone in self._asked.keys() - member_ids:
            del self._asked[gone]

    async def _compare(self, asked: _Asked) -> None:
        try:
            if self._clock() >= asked.ask_at:
                asked.problem = await self._ask(asked)
                wait = TOKEN_PARITY_RETRY_SECONDS if asked.problem else TOKEN_PARITY_SECONDS
                asked.ask_at = self._clock() + wait
        finally:
            asked.task = None
        for other in tuple(self._asked.values()):
            if other is asked or (other.model == asked.model and other.answers):
                self._conclude(other)  # for them there is one more to be compared with

    def _conclude(self, asked: _Asked) -> None:
        now = self._clock()
        outcome, note = (Outcome.SKIPPED, asked.problem) if asked.problem else self._judge(asked)
        asked.due_at = now + (
            TOKEN_PARITY_SECONDS if outcome is Outcome.AGREES else TOKEN_PARITY_RETRY_SECONDS
        )
        if outcome is Outcome.DIFFERS:
            asked.ask_at = now  # somebody may mend it
        if self._asked.get(asked.member.id) is asked:
            for worker_id in asked.member.worker_ids:
                self._core.observe_tokens(worker_id, asked.model, outcome, note)

    async def _ask(self, asked: _Asked) -> str:
        """Have the worker tokenize the probes; why that can't be done, in words."""
        member = asked.member
        facts, spec = member.watch.facts, member.watch.spec
        assert facts is not None
        if not facts.offers_tokenize:
            return "the worker offers no /tokenize"
        http = WorkerHttp(self._sessions, spec.url, member.watch.headers)
        asked.answers.clear()
        asked.texts.clear()
        for protocol, probe in PROBES.items():
            request = ENGINES[facts.engine].tokenize_request(protocol, probe, asked.model)
            if request is None:
                continue
            try:
                answer = await http.post_json(TOKENIZE_PATH, _with_texts(request, facts.engine), SMALL_BYTES)
            except CallFailed as error:
                return str(error)
            # Base models have no chat template, and refuse a chat.
            if answer.is_success and (tokens := _tokens_in(answer.body)) is not None:
                asked.answers[protocol] = tokens.ids
                asked.texts.update(tokens.texts)
        return "" if asked.answers else f"{TOKENIZE_PATH} takes none of the probes"

    def _judge(self, asked: _Asked) -> tuple[Outcome, str]:
        """What comes of the answers, and in words why they differ or say nothing."""
        causes: dict[Protocol, str] = {}
        place = ""
        for protocol, theirs in asked.answers.items():
            ours, place = self._reference(asked, protocol)
            if ours is not None:
                causes[protocol] = likely_cause(ours, theirs, _spelling(asked.texts))
        if not causes:
            return Outcome.SKIPPED, "no other worker and no tokenizer here to compare its tokens with"
        note = place + words if (words := _words(causes)) else ""
        return (Outcome.DIFFERS, note) if note else (Outcome.AGREES, "")

    def _reference(self, asked: _Asked, protocol: Protocol) -> tuple[Sequence[int] | None, str]:
        """Our tokens of a probe, and whose they are in words where they are not our own."""
        if isinstance(self.source, ProbeTokens):
            ours = self.source.tokens_of_probe(asked.model, protocol)
            if ours is not None:
                return ours, ""
        others = Counter(
            other.answers[protocol]
            for other in self._asked.values()
            if other is not asked and other.model == asked.model and protocol in other.answers
        )
        mine = asked.answers[protocol]
        # Of two that differ nobody knows who is right: both are said to differ.
        most_common = max(others, key=lambda ids: (others[ids], ids == mine), default=None)
        return most_common, "beside other workers of its model, from which our tokens come: "


def _words(causes: Mapping[Protocol, str]) -> str:
    """One cause for both probes; "" when both agree."""
    chat, text = causes.get(Protocol.CHAT, ""), causes.get(Protocol.COMPLETIONS, "")
    if chat and not text and Protocol.COMPLETIONS in causes:
        return f"chats have other tokens and plain texts the same, so the chat template differs: {chat}"
    return text or chat


def _spelling(texts: Mapping[int, str]) -> Callable[[int], str]:
    return lambda token: texts.get(token, f"#{token}")


def _with_texts(request: bytes, engine: str) -> bytes:
    """The request with a wish for the tokens' texts, where the engine has them."""
    return request[:-1] + b',"return_token_strs":true}' if engine == "vllm" else request


@dataclass(frozen=True, slots=True)
class _Tokens:
    ids: Ids
    texts: Mapping[int, str]


class _Answer(msgspec.Struct):
    tokens: list[int]
    token_strs: list[str] | None = None


def _tokens_in(body: bytes) -> _Tokens | None:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts = zip(answer.tokens, answer.token_strs or (), strict=False)
    return _Tokens(tuple(answer.tokens), dict(texts))
