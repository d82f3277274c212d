"""Whether tokens that are made here are those of the workers: asked once for each tokenizer, before `auto`
relies on it.

A tokenizer.json that lies here need not be what the engine makes of the model: another revision, a chat
template given to the engine alone, a class of transformers that builds its tokenizer anew. A worker's own
`/tokenize` is exact, so where it can be asked it decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from router.core.catalogue import Resolution
from router.engines import ENGINES, WorkerSessions
from router.engines.http import CallFailed, WorkerHttp
from router.engines.tokenize import TOKENIZE_PATH
from router.tasks import start_task
from router.tokens.base import TokenizeTarget
from router.tokens.limits import ANSWER_BYTES_BASE, TOKENIZE_SECONDS
from router.tokens.local.differences import likely_cause
from router.tokens.local.source import LocalTokens
from router.tokens.probe import PROBES
from router.wire.endpoints import Protocol

_logger = logging.getLogger("kvgate.tokens")


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Agreement:
    """Verdicts by base model, as many as there are tokenizers here."""

    def __init__(self, local: LocalTokens, sessions: WorkerSessions) -> None:
        self._local = local
        self._sessions = sessions
        self._verdicts: dict[str, bool] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def holds(self, resolution: Resolution, targets: Sequence[TokenizeTarget]) -> bool:
        """Whether the model has a tokenizer here that the workers agree with. Where that is not known yet it
        is asked for in the background; without `targets` there is nobody to contradict."""
        base_model = resolution.base_model
        if not self._local.has_tokenizer(base_model):
            return False
        verdict = self._verdicts.get(base_model)
        if verdict is None and targets and base_model not in self._asking:
            task = start_task(self._ask(resolution, targets[0]), f"compare tokens of {base_model}")
            self._asking[base_model] = task
            task.add_done_callback(lambda _: self._asking.pop(base_model))
        return not targets if verdict is None else verdict

    def is_relied_on(self, base_model: str) -> bool:
        """Whether a worker has agreed, or could not be asked for tokens of its own."""
        return self._verdicts.get(base_model, False)

    async def _ask(self, resolution: Resolution, target: TokenizeTarget) -> None:
        """Leaves no verdict when no answer comes: the next request asks again."""
        try:
            causes = [await self._difference(resolution, target, protocol) for protocol in PROBES]
        except CallFailed:
            return
        cause = next(filter(None, causes), "")
        self._verdicts[resolution.base_model] = not cause
        if cause:
            _logger.warning(
                "%s: tokens made here differ from those of worker %s: %s; workers are asked for them instead",
                resolution.base_model, target.worker_id, cause,
            )  # fmt: skip

    async def _difference(self, resolution: Resolution, target: TokenizeTarget, protocol: Protocol) -> str:
        """Why the tokens of a probe differ; "" where they do not or where there is nothing to compare. Raises
        CallFailed."""
        ours = self._local.tokens_of_probe(resolution.base_model, protocol)
        request = ENGINES[target.engine].tokenize_request(protocol, PROBES[protocol], resolution.base_model)
        if ours is None or request is None:
            return ""
        http = WorkerHttp(self._sessions, target.url, target.headers, timeout_seconds=TOKENIZE_SECONDS)
        answer = await http.post_json(TOKENIZE_PATH, request, ANSWER_BYTES_BASE)
        if answer.status >= 500:  # a worker in trouble: of its tokens that says nothing
            raise CallFailed(f"{TOKENIZE_PATH} answered {answer.status}")
        try:
            theirs = msgspec.json.decode(answer.body, type=_Tokens).tokens if answer.is_success else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            theirs = None
        if theirs is None:
            return ""
        return likely_cause(ours, theirs, lambda token: self._local.text_of(resolution.base_model, token))
