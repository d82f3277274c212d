"""A routing core with workers, and requests for it, as tests of the rooms around it need them."""

from indexer.blocks import HashSpace, Unit
from policies import make_policy
from policies.types import RoutingRequest, ServedModel, Worker
from router.core.prompt import Prompt
from router.core.routing import RoutingCore

MODEL = "tiny"
BLOCK_TOKENS = 16


def worker(worker_id, **changes):
    fields = {
        "id": worker_id,
        "url": f"http://{worker_id}:8000",
        "models": (ServedModel(MODEL),),
        "engine": "vllm",
        "block_tokens": BLOCK_TOKENS,
        "num_blocks": 1000,
    }
    return Worker(**(fields | changes))


def core_with(*workers, policy="kv"):
    core = RoutingCore(policy=make_policy(policy))
    core.reconcile(workers, now=0.0)
    return core


def request(request_id, *, num_tokens=64, stream=True):
    return RoutingRequest(id=request_id, model=MODEL, num_prompt_tokens=num_tokens, stream=stream)


def prompt(num_tokens=64, start=0):
    """A prompt whose block hashes are consecutive numbers from `start`."""
    chain = list(range(start, start + num_tokens // BLOCK_TOKENS))
    return Prompt(
        num_tokens=num_tokens, unit=Unit.TOKENS, chains={HashSpace(MODEL, BLOCK_TOKENS): chain}, exact=True
    )
