#!/usr/bin/env python3
"""Compares the tuner's predictions with measured times: for each collective, algorithm and size, the factor between them.

    bench/tuner_error.py build/release [--nodes 2] [--ranks-per-node 2] [--sizes 1K,64K,1M] [--json FILE]

Nodes are groups of processes of this machine that count as different hosts (PEAL_HOST_ID), so everything goes over
the loopback interface; on real hosts, run the benches there with PEAL_ALGO and PEAL_TUNER_FILE. A first run measures
the link costs into a file; peal-info --explain predicts from it; then each candidate is forced by PEAL_ALGO and timed.
Says for each call how much slower the tuner's choice is than the quickest that was measured, and ends with the median
factor. Exit status 1 if a run failed or a result was wrong.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

LIMIT_S = 120
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PROGRAMS = {"all_reduce": "all_reduce_perf", "reduce_scatter": "reduce_scatter_perf", "all_gather": "all_gather_perf",
            "broadcast": "broadcast_perf", "reduce": "reduce_perf"}


def size_of(text):
    return int(text[:-1]) * UNITS[text[-1].upper()] if text[-1].upper() in UNITS else int(text)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_ranks(command, arguments, settings):
    """Runs the program on every rank; ends the program with a sentence if one fails. Returns rank 0's output."""
    size = arguments.nodes * arguments.ranks_per_node
    root = f"127.0.0.1:{free_port()}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PEAL_")}
    ranks = []
    for rank in range(size):
        own = {"PEAL_RANK": str(rank), "PEAL_SIZE": str(size), "PEAL_ROOT": root, "PEAL_SECRET": "tuner error",
               "PEAL_HOST_ID": f"host{rank // arguments.ranks_per_node}", **settings}
        ranks.append(subprocess.Popen(command, env={**clean, **own}, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT))
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(command)} took more than {LIMIT_S} s")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"{' '.join(command)} with {settings} ended with {rank.returncode}:\n{output}")
    return outputs[0]


def measured_us(arguments, collective, size, settings, folder):
    """The mean time of a call, out of place."""
    path = os.path.join(folder, "report.json")
    program = os.path.join(arguments.build, "bench", PROGRAMS[collective])
    iterations = max(5, min(arguments.iterations, (8 << 20) // max(size, 1)))
    run_ranks([program, "-b", str(size), "-e", str(size), "-n", str(iterations), "-w", "3", "-c", "1", "-O", "1", "-J", path],
              arguments, settings)
    with open(path, encoding="utf-8") as file:
        row = json.load(file)["results"][0]
    half = row["out_of_place"]
    if int(half["nwrong"]) != 0:
        sys.exit(f"{collective} of {size} bytes with {settings}: {half['nwrong']} wrong elements")
    return float(half["time"])


def predicted(arguments, collective, size, settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PEAL_")}
    text = subprocess.run([os.path.join(arguments.build, "tools", "info", "peal-info"), "--json", "--explain", collective, str(size),
                           "--nodes", str(arguments.nodes), "--ranks-per-node", str(arguments.ranks_per_node)],
                          check=True, capture_output=True, text=True, env={**clean, **settings}).stdout
    return json.loads(text)


def compare(arguments, folder):
    settings = {"PEAL_TUNER_FILE": os.path.join(folder, "links")}
    measured_us(arguments, "all_reduce", 8, settings, folder)  # writes the file
    rows = []
    print(f"{'collective':15}{'bytes':>10}  {'algorithm':13}{'predicted us':>13}{'measured us':>13}{'factor':>8}")
    for collective in arguments.collectives.split(","):
        for size in map(size_of, arguments.sizes.split(",")):
            answer = predicted(arguments, collective, size, settings)
            times = {}
            for candidate in answer["candidates"]:
                name = candidate["algorithm"]
                times[name] = measured_us(arguments, collective, size, {**settings, "PEAL_ALGO": name}, folder)
                factor = candidate["predictedUs"] / times[name]
                rows.append({"collective": collective, "bytes": size, "algorithm": name, "factor": factor,
                             "predictedUs": candidate["predictedUs"], "measuredUs": times[name]})
                print(f"{collective:15}{size:10}  {name:13}{candidate['predictedUs']:13.1f}{times[name]:13.1f}{factor:8.2f}",
                      flush=True)
            best = min(times, key=times.get)
            print(f"{'':15}{'':10}  chosen {answer['chosen']}, quickest {best}: "
                  f"{times[answer['chosen']] / times[best]:.2f} times its time", flush=True)
    off = [max(row["factor"], 1 / row["factor"]) for row in rows]
    print(f"predictions are off by a factor of {statistics.median(off):.2f} in the median, {max(off):.2f} at most")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", help="the build folder")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--sizes", default="1K,64K,1M")
    parser.add_argument("--collectives", default="all_reduce")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(arguments, folder)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
