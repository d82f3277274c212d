"""`kvgate tokens`: what the gateway makes of a request body, and where a worker's own tokens part from it.

The first thing to reach for when overlap is zero. Tokens come as those of `--tokens local`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from indexer.blocks import HASHINGS, HashSpace
from policies.types import Worker
from router.core.catalogue import Catalogue, Resolution
from router.engines import ENGINES, ProbeFailed, WorkerFacts, WorkerSessions, probe
from router.engines.http import CallFailed, WorkerHttp
from router.engines.tokenize import TOKENIZE_PATH
from router.errors import RouterError
from router.tls import ReloadedContext, worker_context
from router.tokenizer_files import NoTokenizer
from router.tokens.engine import of_first
from router.tokens.hashing import Pace, chain_hashes
from router.tokens.limits import ANSWER_BYTES_BASE, ANSWER_BYTES_PER_REQUEST_BYTE
from router.tokens.local import LocalModels
from router.tokens.local.conversation import Manner
from router.tokens.local.differences import first_difference, likely_cause
from router.tokens.prompts import NotTokenIds, PromptBatch, batch_of, pack_json_ids
from router.tokens.refusals import NoTokens, refuse_media_fields
from router.wire.endpoints import ENDPOINTS, Endpoint, Protocol
from router.wire.openai import ParsedBody, parse_body

if TYPE_CHECKING:
    from router.tokens.local.model import LocalModel

EQUAL, DIFFERENT, FAILED = 0, 1, 2
"""Exit codes."""

DEFAULT_BLOCK_TOKENS = 16

NEIGHBOURS = 6
"""Tokens shown on either side of a difference."""


class _Failed(Exception):
    """Nothing to print; the text says why."""


def main(argv: Sequence[str]) -> int:
    """Reads a body from standard input, prints one JSON object; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        report = asyncio.run(_report(arguments, sys.stdin.buffer.read()))
    except (_Failed, NoTokenizer) as error:
        sys.stderr.write(f"kvgate tokens: {error}\n")
        return FAILED
    sys.stdout.write(_lines(report))
    return DIFFERENT if report.get("worker", {}).get("equal") is False else EQUAL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvgate tokens",
        description="Print, as JSON, the rendered text, the token ids and the block hashes that the gateway "
        "sees for a request body on standard input; with --worker also where the worker's own tokens differ.",
        epilog="Exit code: 0 equal, or no worker to compare with; 1 different; 2 something is wrong.",
        allow_abbrev=False,
    )
    for flag, metavar, help in _FLAGS:
        parser.add_argument(flag, metavar=metavar, help=help, required=flag == "--tokenizer")
    parser.add_argument("--block-size", type=_positive, metavar="N", help="of a block [the worker's, or 16]")
    parser.add_argument(
        "--lookahead-tokens", type=_whole, default=0, metavar="N",
        help="tokens behind a block that its hash covers too, as with EAGLE [0]",
    )  # fmt: skip
    parser.add_argument(
        "--block-hash", choices=tuple(HASHINGS), default="kvgate", help="as given to kvgate serve [kvgate]"
    )
    return parser


_FLAGS = (
    ("--tokenizer", "PLACE", "a directory, a tokenizer.json, or a model in the local hub cache"),
    ("--chat-template", "FILE", "a chat template in place of the tokenizer's own"),
    ("--model", "NAME", "the model, in place of the body's"),
    ("--worker", "URL", "compare with this worker's /tokenize"),
    ("--worker-api-key", "KEY", "the key to show to it"),
)


def _positive(word: str) -> int:
    if (number := _whole(word)) == 0:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return number


def _whole(word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise argparse.ArgumentTypeError("must be a whole number")
    return int(word)


@dataclass(frozen=True, slots=True)
class _Body:
    """A body that was read, and the shape of its prompt."""

    parsed: ParsedBody
    batch: PromptBatch | None
    protocol: Protocol


async def _report(arguments: argparse.Namespace, raw: bytes) -> dict[str, Any]:
    body = _read(raw)
    templates = [f"={arguments.chat_template}"] if arguments.chat_template else []
    models = LocalModels([f"={arguments.tokenizer}"], templates)
    models.load_named()
    model = models.get("")
    assert model is not None, "load_named raises for what it can't load"
    async with _Worker(arguments.worker, arguments.worker_api_key) as worker:
        resolution = worker.resolve(arguments.model or body.parsed.model)
        text, packed = await _tokens(model, body, worker.manner)
        ours = _ids(packed)
        space = HashSpace(
            resolution.base_model,
            arguments.block_size or worker.block_tokens or DEFAULT_BLOCK_TOKENS,
            arguments.lookahead_tokens,
            arguments.block_hash,
        )
        report: dict[str, Any] = {
            "model": resolution.base_model,
            "adapter": resolution.adapter,
            "rendered": text,
            "num_tokens": len(ours),
            "token_ids": ours,
            "block_size": space.block_tokens,
            "block_hashes": await _hashes(packed, space, resolution, body.parsed.cache_salt),
        }
        if arguments.worker:
            theirs = await worker.tokens(body, resolution.model)
            report["worker"] = _comparison(ours, theirs, model, arguments.worker)
    models.close()
    return report


def _read(raw: bytes) -> _Body:
    """What prompt there is decides the endpoint."""
    for endpoint in _TOKENIZED_ENDPOINTS:
        try:
            parsed = parse_body(raw, endpoint)
            batch = batch_of(parsed.prompt)
        except RouterError as error:
            problem = error.message
            continue
        if endpoint.protocol is Protocol.CHAT or batch is not None:
            return _Body(parsed, batch, endpoint.protocol)
        problem = "it holds neither messages nor a prompt nor a text"
    raise _Failed(f"the body on standard input can't be read: {problem}")


_TOKENIZED_ENDPOINTS: Sequence[Endpoint] = [
    ENDPOINTS[path] for path in ("/v1/chat/completions", "/v1/completions", "/generate")
]


async def _tokens(model: LocalModel, body: _Body, manner: Manner) -> tuple[str | None, bytes]:
    """The rendered text, None where the client sent ids, and the packed ids."""
    prompt, batch = body.parsed.prompt, body.batch
    try:
        if batch is not None and batch.are_ids:
            return None, await pack_json_ids(batch.first, Pace())
        refuse_media_fields(prompt)
        text = model.text(batch, prompt, manner)
        special = model.wants_special_tokens(prompt, default=body.protocol is not Protocol.CHAT)
        return text, model.encoder.encode(text, add_special_tokens=special)
    except NoTokens as error:
        raise _Failed(f"the gateway routes this body by its bytes: {_in_words(error)}") from None
    except NotTokenIds:
        raise _Failed("the prompt is a list of something else than token ids") from None


def _in_words(error: NoTokens) -> str:
    detail = f" ({error.args[1]})" if len(error.args) > 1 else ""
    return _REASONS.get(error.reason, error.reason) + detail


_REASONS = {
    "media": "it holds more than text",
    "no_template": "there is no chat template",
    "template": "the chat template does not take it, or engines would not",
    "text": "it holds what is no text",
}


async def _hashes(packed: bytes, space: HashSpace, resolution: Resolution, cache_salt: str) -> list[str]:
    root = HASHINGS[space.hashing].root
    seed = root(space.base_model, adapter=resolution.adapter, cache_salt=cache_salt)
    chains = await chain_hashes(packed, [(space, seed)], Pace())
    return [f"{block_hash:016x}" for block_hash in chains[space]]


def _ids(packed: bytes) -> list[int]:
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


# The worker


class _Worker:
    """The worker to compare with; without a URL it knows nothing and is asked nothing."""

    def __init__(self, url: str | None, api_key: str | None) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._facts: WorkerFacts | None = None
        self._http: WorkerHttp
        self._sessions: WorkerSessions

    async def __aenter__(self) -> _Worker:
        self._sessions = WorkerSessions(ReloadedContext("TLS to the worker", worker_context, ()))
        try:
            if self._url is not None:
                self._http = WorkerHttp(self._sessions, self._url, self._headers)
                self._facts = await probe(self._http)
        except (ProbeFailed, CallFailed, ValueError) as error:
            await self._sessions.close()
            raise _Failed(f"{self._url}: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.close()

    @property
    def block_tokens(self) -> int | None:
        return self._facts.block_tokens if self._facts is not None else None

    @property
    def manner(self) -> Manner:
        is_vllm = self._facts is not None and self._facts.engine == "vllm"
        return Manner.VLLM if is_vllm else Manner.PLAIN

    def resolve(self, model: str | None) -> Resolution:
        """The model that is meant, and its adapter where the worker knows it as one."""
        if self._url is None or self._facts is None:
            return Resolution(model or "", model or "")
        try:
            worker = Worker(id=self._url, url=self._url, models=self._facts.models)
            return Catalogue([worker]).resolve(model)
        except RouterError as error:
            raise _Failed(f"{self._url}: {error.message}") from None

    async def tokens(self, body: _Body, model: str) -> list[int]:
        """Its own for the body."""
        assert self._facts is not None, "asked without a URL"
        if body.batch is not None and body.batch.are_ids:
            raise _Failed("the body holds token ids: there is nothing to compare")
        engine = ENGINES[self._facts.engine]
        request = engine.tokenize_request(body.protocol, of_first(body.parsed.prompt, body.batch), model)
        if request is None:
            raise _Failed(f"{self._url}: {self._facts.engine} can't be asked for the tokens of such a body")
        max_bytes = ANSWER_BYTES_BASE + ANSWER_BYTES_PER_REQUEST_BYTE * len(request)
        try:
            answer = await self._http.post_json(TOKENIZE_PATH, request, max_bytes)
            if not answer.is_success:
                shown = answer.body[:300].decode("utf-8", "replace")
                raise _Failed(f"{self._url}{TOKENIZE_PATH} answered {answer.status}: {shown}")
            return msgspec.json.decode(answer.body, type=_Tokens).tokens
        except CallFailed as error:
            raise _Failed(f"{self._url}: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Failed(f"{self._url}{TOKENIZE_PATH} answered rubbish: {error}") from None


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _comparison(ours: Sequence[int], theirs: Sequence[int], model: LocalModel, url: str) -> dict[str, Any]:
    index = first_difference(ours, theirs)
    compared: dict[str, Any] = {"url": url, "num_tokens": len(theirs), "equal": index is None}
    if index is not None:
        compared["first_difference"] = {
            "index": index,
            "ours": _excerpt(ours, index, model),
            "theirs": _excerpt(theirs, index, model),
        }
        compared["likely_cause"] = likely_cause(ours, theirs, model.encoder.text_of)
    return compared


def _excerpt(tokens: Sequence[int], index: int, model: LocalModel) -> dict[str, Any] | None:
    """The token at `index` and the text around it; the id is None behind the end."""
    around = tokens[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1]
    token = tokens[index] if index < len(tokens) else None
    return {
        "id": token,
        "token": model.encoder.text_of(token) if token is not None else None,
        "text_around": model.encoder.decode(around),
    }


def _lines(report: Mapping[str, Any]) -> str:
    """JSON with a line for each member: readable, and long lists stay short."""
    members = (
        f"  {msgspec.json.encode(name).decode()}: {msgspec.json.encode(value).decode()}"
        for name, value in report.items()
    )
    return "{\n" + ",\n".join(members) + "\n}\n"
