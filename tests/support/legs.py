"""Raw workers as prefill and decode pools, and what engines say in the two legs of a request."""

from __future__ import annotations

from policies.types import Role, ServedModel, Transfer, Worker
from tests.support.raw_worker import RawWorker, answering, json_answer

PARAMETERS = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],'
    b'"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5600,'
    b'"tp_size":1}'
)
COMPUTED = json_answer(
    b'{"choices":[{"finish_reason":"length"}],"kv_transfer_params":%b,'
    b'"usage":{"prompt_tokens":9,"completion_tokens":1}}' % PARAMETERS
)
computes = answering(COMPUTED)
"""A prefill worker of vLLM with NIXL, as it should be."""


def refusing(status: int, body: bytes = b'{"error":{"message":"no"}}') -> bytes:
    head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def prefill(worker: RawWorker, protocol: str = "nixl") -> Worker:
    return _in_pool(worker, Role.PREFILL, protocol)


def decode(worker: RawWorker, protocol: str = "nixl") -> Worker:
    return _in_pool(worker, Role.DECODE, protocol)


def _in_pool(worker: RawWorker, role: Role, protocol: str) -> Worker:
    return Worker(
        id=worker.id,
        url=worker.url,
        models=(ServedModel("m"),),
        role=role,
        transfer=Transfer(protocol=protocol),
        prefills_alone=protocol != "sglang" or role is not Role.DECODE,
    )


def has_parameters(body: bytes) -> bool:
    return b"do_remote_prefill" in body
