"""What `kvgate sim` is told of prefill and decode workers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from loadgen.arguments import above_zero, whole_number
from loadgen.sim.settings import KV_BYTES_PER_TOKEN, PoolSettings
from loadgen.transfer import TransferModel
from policies import PolicyError, parse_policy, spell_policy
from router.core.disagg import DisaggRules, Mode

WHOLE_WORKERS = 8
"""Of a fleet without pools."""
_RULES = DisaggRules()


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    option = partial(parser.add_argument)
    option("--prefill", type=whole_number(0, 1024), default=0, help="workers that only compute prompts")
    option("--decode", type=whole_number(0, 1024), default=0, help="workers that decode")
    option(
        "--disagg",
        action="append",
        type=_modes,
        help=f"where prompts are computed, one run each: {', '.join(Mode)}; several by comma or repeated "
        f"({_RULES.mode})",
    )
    option(
        "--disagg-min-tokens",
        type=whole_number(0),
        default=_RULES.min_tokens,
        help="conditional: from so many uncached tokens on, a prefill worker",
    )
    option(
        "--disagg-ratio",
        type=_ratio,
        default=_RULES.ratio,
        help="conditional: from that uncached share of the prompt on, a prefill worker",
    )
    option("--prefill-policy", type=policy_text, help="of the prefill pool, instead of --policy")
    option("--decode-policy", type=policy_text, help="of the decode pool, instead of --policy")
    option("--transfer-gbps", type=above_zero, default=100.0, help="Gbit/s of each worker's port")
    option(
        "--kv-bytes-per-token",
        type=whole_number(1),
        default=KV_BYTES_PER_TOKEN,
        help="what is transferred for a token",
    )


def require_a_fleet(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Fills in how many whole workers there are; ends the program where nobody could answer, or where modes
    are asked for that have nothing to decide on."""
    if arguments.num_workers is None:
        arguments.num_workers = 0 if modes_of(arguments) else WHOLE_WORKERS
    if not arguments.num_workers and not arguments.decode:
        parser.error("nobody answers: give --num-workers or --decode at least 1")
    if arguments.disagg and not modes_of(arguments):
        parser.error("--disagg needs pools: give --prefill and --decode")


def modes_of(arguments: argparse.Namespace) -> Sequence[Mode]:
    """One run each; none for a fleet of whole workers alone."""
    if not arguments.prefill and not arguments.decode:
        return ()
    asked = [mode for modes in arguments.disagg or [[_RULES.mode]] for mode in modes]
    return list(dict.fromkeys(asked))


def pools_of(arguments: argparse.Namespace) -> Sequence[PoolSettings | None]:
    """For each run of a policy."""
    return [_pools(arguments, mode) for mode in modes_of(arguments)] or [None]


def _pools(arguments: argparse.Namespace, mode: Mode) -> PoolSettings:
    prefill, decode = arguments.prefill_policy, arguments.decode_policy
    return PoolSettings(
        num_prefill=arguments.prefill,
        num_decode=arguments.decode,
        rules=DisaggRules(mode=mode, min_tokens=arguments.disagg_min_tokens, ratio=arguments.disagg_ratio),
        network=TransferModel(gbps=arguments.transfer_gbps, bytes_per_token=arguments.kv_bytes_per_token),
        prefill_policy=parse_policy(prefill) if prefill else None,
        decode_policy=parse_policy(decode) if decode else None,
    )


def policy_text(text: str) -> str:
    """A policy that exists, in its canonical spelling."""
    try:
        return spell_policy(parse_policy(text))
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _modes(text: str) -> list[Mode]:
    try:
        return [Mode(word.strip()) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; known: {', '.join(Mode)}") from None


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value
