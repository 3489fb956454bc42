#!/usr/bin/env python3
"""Runs the tests of the library's host code on simulated GPUs with each seeded defect (table.py), and as it is.
Fails if a defect's test passes, or if one fails where nothing is wrong.

    run.py MUTANTS.TXT PROGRAM
"""
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TIMEOUT_S = 90


def is_complaint(line):
    """Of gtest, or of the simulator."""
    return ": Failure" in line or line.startswith("cudasim: ")


def end(process):
    """Kills a test and the ranks that it has forked."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(program, mutant, test):
    """None if the test passed, else the first complaint. It ends there: ranks would wait long for one that failed."""
    environment = dict(os.environ, PEAL_TEST_MUTANT=mutant)
    command = [program, f"--gtest_filter={test}", "--gtest_brief=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=environment, start_new_session=True) as process:
        timer = threading.Timer(TIMEOUT_S, end, [process])
        timer.start()
        said, complained = [], False
        for line in process.stdout:
            if is_complaint(line):
                end(process)
                said, complained = [line], True
                break
            said.append(line)
        said += process.stdout.readlines()
        status = process.wait()
        timer.cancel()
    if status == 0 and not complained:
        # A filter that no test meets must not pass for a survivor, or for silence where nothing is wrong.
        return None if any("[  PASSED  ] 1 test." in line for line in said) else f"{test} is no test, or was skipped"
    text = " ".join(" ".join(said).split())
    return text if complained else f"status {status}, or no end within {TIMEOUT_S} s: {text}"


def main():
    listing, program = sys.argv[1:]
    mutants = [line.split("\t") for line in Path(listing).read_text(encoding="utf-8").splitlines()]
    tests = sorted({test for *_, test in mutants})
    wrong = 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for test, what in zip(tests, pool.map(lambda test: run(program, "0", test), tests)):
            if what:
                wrong += 1
                print(f"FALSE ALARM of {test}: {what}")
        noticed = pool.map(lambda row: run(program, row[0], row[3]), mutants)
        for (number, file, what, test), result in zip(mutants, noticed):
            wrong += result is None
            print(f"{number:>3}  {file:20} {what:48} {test}: {(result or 'SURVIVED')[:110]}", flush=True)
    print(f"{len(mutants)} defects, {wrong} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
