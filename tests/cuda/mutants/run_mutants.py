#!/usr/bin/env python3
"""Runs the kernels with each seeded defect (mutate.py) until a mode of the simulator notices it, and the kernels
as they are in every mode. Fails if a defect survives all modes, or if something is noticed where nothing is.

    run_mutants.py MUTANTS.TXT PROGRAM [TSAN_PROGRAM]

Modes are tried in the order of MODES, those that notice most for their time first. The thread sanitizer's program
comes last and ends with status 99; what only it can notice goes there at once, and is left out where it is missing
(ONLY_BY_TSAN says which those are).
"""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Mode, first seed, seeds.
MODES = [("fair", 1, 1), ("weak", 1, 2), ("starve", 1, 4), ("both", 1, 4), ("random", 1, 2)]
TSAN_MODES = [("fair", 1, 1), ("random", 1, 1)]
TIMEOUT_S = 120
TSAN_STATUS = 99

# What the weak memory model cannot make visible: it moves no load behind a later store.
ONLY_BY_TSAN = {"credit loaded relaxed", "credit stored relaxed"}


def run(program, mutant, mode, first, seeds):
    """None if nothing was noticed, else what was."""
    environment = dict(os.environ, TSAN_OPTIONS=f"halt_on_error=1:exitcode={TSAN_STATUS}")
    try:
        done = subprocess.run([program, str(mutant), mode, str(first), str(seeds)], capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    if done.returncode == TSAN_STATUS:
        return "data race"
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    return lines[0] if done.returncode == 1 else f"status {done.returncode}: {lines[0]}"


def noticed_by(mutant, what, program, tsan_program):
    """(mode, what was seen) of the first mode that notices the defect `what`, or None."""
    for mode, first, seeds in [] if what in ONLY_BY_TSAN and tsan_program else MODES:
        if seen := run(program, mutant, mode, first, seeds):
            return mode, seen
    for mode, first, seeds in TSAN_MODES if tsan_program else []:
        if seen := run(tsan_program, mutant, mode, first, seeds):
            return "tsan, " + mode, seen
    return None


def main():
    listing, program, *rest = sys.argv[1:]
    tsan_program = rest[0] if rest else None
    mutants = [line.split("\t") for line in Path(listing).read_text(encoding="utf-8").splitlines()]
    wrong = 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        clean = [(program, mode) for mode in MODES] + [(tsan_program, mode) for mode in TSAN_MODES if tsan_program]
        results = pool.map(lambda job: run(job[0], 0, *job[1]), clean)
        for (which, mode), what in zip(clean, results):
            if what:
                wrong += 1
                print(f"FALSE ALARM in mode {mode[0]} of {Path(which).name}: {what}")
        noticed = pool.map(lambda row: noticed_by(row[0], row[2], program, tsan_program), mutants)
        for (number, file, what), result in zip(mutants, noticed):
            if result:
                print(f"{number:>3}  {file:20} {what:52} {result[0]:12} {result[1][:110]}", flush=True)
            elif not tsan_program and what in ONLY_BY_TSAN:
                print(f"{number:>3}  {file:20} {what:52} left out: no thread sanitizer")
            else:
                wrong += 1
                print(f"{number:>3}  {file:20} {what:52} SURVIVED")
    print(f"{len(mutants)} defects, {wrong} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
