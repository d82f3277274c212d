"""What engines report of a request that two workers share."""

from policies.types import Role, Transfer
from router.core.disagg import DisaggRules, Mode
from router.core.reports import Reports
from tests.support.fleets import make_core, prompt_of, request, silent

NIXL = Transfer(protocol="nixl")
PROMPT = list(range(640))


def test_the_decode_workers_number_speaks_of_another_cache_and_teaches_nothing():
    core = make_core(
        [silent("p", role=Role.PREFILL, transfer=NIXL), silent("d", role=Role.DECODE, transfer=NIXL)],
        disagg=DisaggRules(mode=Mode.ALWAYS),
    )
    assert isinstance(core._reports, Reports)
    core.route(request("r"), prompt_of(PROMPT), now=0.0)
    prefill = core.prefill_answered("r", now=1.0, prompt_tokens=640, cached_tokens=None)
    assert prefill is None  # an engine that has never reported a number
    core.first_token("r", now=1.0)
    assert core.observe_usage("r", prompt_tokens=640, cached_tokens=639, now=2.0) is None
    assert not core._workers.get("d").reports_cached_tokens
    core.finish("r", "done", now=2.0)


def test_the_prefill_workers_number_is_compared():
    core = make_core(
        [silent("p", role=Role.PREFILL, transfer=NIXL), silent("d", role=Role.DECODE, transfer=NIXL)],
        disagg=DisaggRules(mode=Mode.ALWAYS),
    )
    for turn, reported in enumerate((0, 624)):
        core.route(request(f"r{turn}"), prompt_of(PROMPT), now=float(turn))
        cached = core.prefill_answered(f"r{turn}", now=turn + 0.1, prompt_tokens=640, cached_tokens=reported)
        assert (cached.expected, cached.reported) == (reported, reported)
        core.first_token(f"r{turn}", now=turn + 0.2)
        core.finish(f"r{turn}", "done", now=turn + 0.3)
