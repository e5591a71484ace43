"""`python -m tests.simulation --seeds 100 --from 0`, or `--seed 7 --trace` for one seed with what happened."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.runs import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Simulate the whole system with faults, once for each seed.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    options = parser.parse_args()
    began, failed, faults, run = time.monotonic(), [], Counter[str](), 0
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    for seed in seeds:
        outcome = run_seed(seed)
        run += 1
        faults += outcome.faults
        if options.trace:
            print("\n".join(outcome.trace))
        if outcome.broken:
            failed.append(seed)
            print(f"seed {seed}: {outcome.broken[0]}", flush=True)
        if options.seconds is not None and time.monotonic() - began > options.seconds:
            break
    print(f"{run} seeds from {next(iter(seeds))} in {time.monotonic() - began:.0f} s, {len(failed)} failed: {failed}")
    print(", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
