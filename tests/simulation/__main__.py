"""`python -m tests.simulation --seeds 100 --from 0`, or `--seed 7 --trace` for one seed with what happened."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

from tests.simulation.fault_injection import FAULTS
from tests.simulation.pool import outcomes
from tests.simulation.runs import EVENT_TIMES, FAULTS_OF_A_SEED, fewest_faults, run_seed

LEAST_SHARE = 0.01
"""The least share of the seeds in which each kind of fault should happen."""

PROGRESS = 100
"""After so many seeds each, the number of those that failed is printed."""

ENOUGH = 1000
"""From so many seeds on a share that is too low is a failure."""


def show_shares(faults: Sequence[Counter[str]], kinds: Collection[str]) -> Sequence[str]:
    """Print in how many of the seeds each kind of fault happened. A fault that found nothing to act on does not count. Returns the kinds
    that happened too rarely."""
    shares = {name: sum(name in each for each in faults) / len(faults) for name in sorted(kinds)}
    print("seeds with each fault: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    rare = [name for name, share in shares.items() if share < LEAST_SHARE]
    print(f"in less than {LEAST_SHARE:.0%} of the seeds: {', '.join(rare) or 'none'}")
    return rare


def show_fewest(seed: int, kinds: Sequence[str], count: int) -> None:
    print(f"seed {seed}: looking for the fewest faults that break it", flush=True)
    fewest = fewest_faults(seed, kinds, count)
    print("\n".join(fewest.trace))
    faults = ",".join(str(each.number) for each in fewest.plan if each.name)
    print(f"seed {seed} with the faults {faults} (--seed {seed} --only {faults}): {fewest.broken[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Simulate the whole system with faults, once for each seed.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, help="the first seed; new ones without it")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--only", help="of this seed only the faults with these numbers: 3,7,12")
    parser.add_argument("--kinds", default="", help="only faults of these kinds: kill_container,drain")
    parser.add_argument("--without", default="", help="with --seed: no faults of these kinds, which are newer than the seed")
    parser.add_argument("--faults", type=int, default=FAULTS_OF_A_SEED, help="how many faults a seed has")
    parser.add_argument("--seconds", type=float, help="begin no seed after so many seconds")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--until-broken", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the fewest faults that break the first seed that fails")
    options = parser.parse_args()
    began, failed, run = time.monotonic(), [], 0
    kinds = [kind for kind in options.kinds.split(",") if kind]
    if unknown := set(kinds) - FAULTS.keys() - {EVENT_TIMES}:
        parser.error(f"no such kind of fault: {', '.join(sorted(unknown))}; there are {', '.join(sorted(FAULTS))}")
    if options.seed is not None:
        only = None if options.only is None else {int(number) for number in options.only.split(",") if number}
        outcome = run_seed(options.seed, options.faults, only, kinds, options.without.split(","))
        print("\n".join([*(outcome.trace if options.trace else ()), *(f"seed {options.seed}: {each}" for each in outcome.broken)]))
        turns = f"{outcome.turns} turns, {outcome.requests} requests"
        print(f"{time.monotonic() - began:.0f} s, {outcome.virtual_seconds:.0f} s of virtual time, {turns}")
        if outcome.broken and not options.trace and not options.no_shrink:
            show_fewest(options.seed, kinds, options.faults)
        return 1 if outcome.broken else 0
    first = int(time.time()) if options.first is None else options.first
    print(f"seeds from {first}", file=sys.stderr, flush=True)
    faults: list[Counter[str]] = []
    one = partial(run_seed, faults=options.faults, kinds=kinds)
    for outcome in outcomes(one, range(first, first + options.seeds), options.workers, options.seconds):
        run += 1
        faults.append(outcome.faults)
        if outcome.broken:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed}: {outcome.broken[0]}", flush=True)
            if options.until_broken:
                break
        if run % PROGRESS == 0:
            print(f"{run} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed", file=sys.stderr, flush=True)
    print(f"{run} seeds from {first} in {time.monotonic() - began:.0f} s, {len(failed)} failed: {sorted(failed)}")
    rare = show_shares(faults, set(kinds) - {EVENT_TIMES} or FAULTS.keys())
    if failed and not options.no_shrink:
        show_fewest(min(failed), kinds, options.faults)
    return 1 if failed or (rare and run >= ENOUGH) else 0


if __name__ == "__main__":
    sys.exit(main())
