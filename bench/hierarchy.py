#!/usr/bin/python3
"""Hierarchical all-reduce, direct and by a ring between hosts, beside the flat ring, between hosts whose links are limited: what theory and link allow.

    bench/hierarchy.py build/release/bench/all_reduce_perf [--rate-mbit 1000] [--ranks 2,2 4,4] [--bytes 16777216]

The hosts are network namespaces of this machine (tools/hosts/hosts.py); needs root. Algorithms run in alternation;
medians over the rounds. With R hosts of equal size and N ranks, laid host by host, of S bytes each host sends

    hierarchical        2 (R - 1)/R x S   every element once out and once back
    hierarchical_ring   2 (R - 1)/R x S   the same, to the next host only; from three hosts on
    flat ring           2 (N - 1)/N x S   the link between two hosts is one of the ring's N links

so the hierarchy is faster by (N - 1)/N x R/(R - 1), as long as the wire is what takes the time. Where ranks are laid one to
each host in turn (--order robin) hierarchies send the same, and a flat ring goes to another host at each step. With
uneven hosts the busiest one counts: of s x S of its own it sends S + (R - 2) s S directly, and round the ring less than 2 S.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "hosts"))
import hosts  # noqa: E402 (found by the line above)

ALGORITHMS = ("hierarchical", "hierarchical_ring", "ring")
ITERATIONS, WARM_UP = 4, 1
# Of an Ethernet frame of 9000 bytes with 66 of headers, as tbf counts it.
PAYLOAD_SHARE = 1 - 66 / 9014


def formula_bytes(algorithm, per_host, size, order):
    hosts_, ranks = len(per_host), sum(per_host)
    if algorithm == "ring":
        where = hosts.places(per_host, order)
        leaving = [where[rank] for rank in range(ranks) if where[rank] != where[(rank + 1) % ranks]]
        return max(map(leaving.count, where)) * 2 * (ranks - 1) / ranks * size
    if algorithm == "hierarchical":
        return (1 + (hosts_ - 2) * max(per_host) / ranks) * size
    least = min(own + per_host[(host + 1) % hosts_] for host, own in enumerate(per_host))
    return (2 - least / ranks) * size


def measure(made, program, per_host, algorithm, size, folder, order, **environment):
    """Seconds of one call, and bytes that the busiest host sent for it; start and warm-up are taken off by a run with
    fewer calls."""
    seconds, sent = run(made, program, per_host, algorithm, size, folder, order, ITERATIONS, **environment)
    _, less = run(made, program, per_host, algorithm, size, folder, order, 1, **environment)
    return seconds, (sent - less) / (2 * (ITERATIONS - 1))  # out of place and in place


def run(made, program, per_host, algorithm, size, folder, order, iterations, **environment):
    report = os.path.join(folder, "report.json")
    before = [made.sent_bytes(index) for index in range(len(per_host))]
    command = [program, "-b", str(size), "-e", str(size), "-n", str(iterations), "-w", str(WARM_UP), "-c", "0", "-R", "1",
               "-J", report]
    for one in hosts.run_ranks(made, per_host, command, order=order, limit_s=600, PEAL_ALGO=algorithm, **environment):
        if one.returncode != 0:
            sys.exit(one.stderr)
    sent = max(made.sent_bytes(index) - start for index, start in enumerate(before))
    with open(report, encoding="utf-8") as file:
        result = json.load(file)["results"][0]
    return result["out_of_place"]["time"] / 1e6, sent


def main():
    parser = argparse.ArgumentParser(description="Hierarchical all-reduce beside the flat ring between hosts.")
    parser.add_argument("perf", help="all_reduce_perf")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--ranks", nargs="+", default=["2,2", "4,4"], help="ranks of each host")
    parser.add_argument("--order", choices=["node", "robin"], default="node", help="how ranks are laid on hosts")
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transport", default="auto", help="PEAL_TRANSPORT: auto, tcp, ucx")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.perf)
    bytes_per_second = arguments.rate_mbit * 1e6 / 8 * PAYLOAD_SHARE
    print(f"# all-reduce of {arguments.bytes} bytes, float32 sum, {arguments.rate_mbit} Mbit/s, "
          f"{arguments.transport}, ranks by {arguments.order}; median of {arguments.rounds}; load {os.getloadavg()[0]:.1f}")
    print(f"{'ranks':>8} {'algorithm':>17} {'time (ms)':>10} {'bound (ms)':>11} {'share':>6} {'sent / formula':>15}")
    with tempfile.TemporaryDirectory() as folder:
        for text in arguments.ranks:
            per_host = [int(one) for one in text.split(",")]
            algorithms = [one for one in ALGORITHMS if one != "hierarchical_ring" or len(per_host) > 2]
            found = {algorithm: [] for algorithm in algorithms}
            with hosts.Hosts(len(per_host), f"{arguments.rate_mbit}mbit") as made:
                for _ in range(arguments.rounds):
                    for algorithm in algorithms:
                        found[algorithm].append(measure(made, program, per_host, algorithm, arguments.bytes, folder,
                                                        arguments.order, PEAL_TRANSPORT=arguments.transport))
            times = {}
            for algorithm in algorithms:
                seconds = times[algorithm] = statistics.median(one[0] for one in found[algorithm])
                sent = statistics.median(one[1] for one in found[algorithm])
                formula = formula_bytes(algorithm, per_host, arguments.bytes, arguments.order)
                bound = formula / bytes_per_second
                print(f"{text:>8} {algorithm:>17} {seconds * 1e3:>10.1f} {bound * 1e3:>11.1f} {bound / seconds:>6.2f} "
                      f"{sent / formula:>15.3f}")
            theory = (formula_bytes("ring", per_host, 1, arguments.order)
                      / formula_bytes("hierarchical", per_host, 1, arguments.order))
            print(f"# {text}: the hierarchy is {times['ring'] / times['hierarchical']:.2f} times as fast as the ring; "
                  f"theory {theory:.2f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
