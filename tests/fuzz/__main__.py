"""`python -m tests.fuzz --minutes 2 [--seed N]`: clients and workers that send anything; exit 1 at a failure.

The seed is printed first, so that a failure can be found again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import uvloop

from tests.fuzz.campaign import Campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of all that is random"
    )
    arguments = parser.parse_args()
    say(f"seed {arguments.seed}, {arguments.minutes:g} minutes")
    campaign = Campaign(arguments.seed)
    ends_at = time.perf_counter() + arguments.minutes * 60
    uvloop.run(campaign.run(lambda case: time.perf_counter() < ends_at))
    say(f"{campaign.outcomes.total()} cases, {len(campaign.outcomes)} different outcomes")
    for failure in campaign.failures:
        say(f"FAILED {failure}")
    return int(bool(campaign.failures))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
