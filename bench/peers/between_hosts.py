#!/usr/bin/python3
"""All-reduce between two hosts over TCP: peal beside Open MPI and gloo, in alternation.

    bench/peers/between_hosts.py build/release/bench/all_reduce_perf [--rate 1gbit] [--rounds 5] [--json FILE]

The hosts are two network namespaces of this machine (tools/hosts/hosts.py), one rank on each; needs root. Every round
runs every contender once at every size; printed are medians over the rounds, and best peer's time / peal's. Installs
Debian's libgloo-dev and libopenmpi-dev with --install; a peer that is missing is left out, with a word.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools", "hosts"))
import hosts  # noqa: E402 (found by the line above)

PACKAGES = ["libgloo-dev", "libopenmpi-dev", "openmpi-bin"]
# Bytes, and iterations that take a tenth of a second or so.
SIZES = [(8, 2000), (1 << 10, 2000), (32 << 10, 500), (256 << 10, 200), (1 << 20, 100), (8 << 20, 12), (64 << 20, 3)]
LIMIT_S = 60


class Failed(Exception):
    """A contender did not get through; the text is what it said."""


def outcome(process):
    """What it printed. Ends it at the limit: a peer that hangs busily would take the machine with it."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failed(f"it did not end within {LIMIT_S} s") from None
    if process.returncode != 0:
        raise Failed(err.strip().splitlines()[-1] if err.strip() else f"exit status {process.returncode}")
    return out


def build(folder):
    """Compiles the drivers. Returns what could be built, by name."""
    common = ["-std=c++20", "-O2", "-I", ROOT]
    recipes = {"gloo": (["g++"], "gloo_driver.cpp", ["-lgloo", "-lpthread"]),
               "openmpi": (["mpicxx.openmpi"], "mpi_driver.cpp", [])}
    built = {}
    for name, (compiler, source, libraries) in recipes.items():
        program = os.path.join(folder, name)
        try:
            done = subprocess.run([*compiler, *common, os.path.join(ROOT, "bench", "peers", source), "-o", program, *libraries],
                                  capture_output=True, text=True, check=False)
            reason = done.stderr.strip().splitlines()[:1] if done.returncode else None
        except FileNotFoundError as error:
            reason = [str(error)]
        if reason is None:
            built[name] = program
        else:
            print(f"# without {name}: {reason[0] if reason else 'it does not compile'}")
    return built


def rows_of(text):
    found = {}
    for size, time_us, wrong in re.findall(r"(?m)^row (\d+) ([\d.]+) (\d+)$", text):
        if wrong != "0":
            raise Failed(f"{wrong} wrong elements at {size} bytes")
        found[int(size)] = float(time_us)
    return found


def run_peal(made, program, sizes, folder):
    found = {}
    for size, iterations in sizes:
        report = os.path.join(folder, "peal.json")
        command = [program, "-b", str(size), "-e", str(size), "-n", str(iterations), "-w", "3", "-R", "1", "-J", report]
        done = hosts.run_ranks(made, (1, 1), command, limit_s=LIMIT_S)
        if any(one.returncode != 0 for one in done):
            raise Failed(f"{done[0].stderr}{done[1].stderr}")
        with open(report, encoding="utf-8") as file:
            result = json.load(file)["results"][0]
        found[size] = result["out_of_place"]["time"]
    return found


def sizes_text(sizes):
    return ",".join(f"{size}:{iterations}" for size, iterations in sizes)


def run_open_mpi(made, program, sizes, variant):
    flags = {"tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"], "ucx": ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]}[variant]
    shell, variables = made.remote_shell()
    process = made.start(0, ["mpirun.openmpi", "--mca", "plm_rsh_agent", shell, *flags, "-x", "UCX_TLS=tcp,self",
                             "--bind-to", "none", "-H", "host0:1,host1:1", "-n", "2", program, sizes_text(sizes)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=hosts.clean_environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                                   **variables))
    return rows_of(outcome(process))


def run_gloo(made, program, sizes, algorithm):
    with tempfile.TemporaryDirectory() as store:
        ranks = [made.start(rank, [program, sizes_text(sizes), str(rank), "2", made.address(rank), store, algorithm],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank in range(2)]
        try:
            return rows_of([outcome(rank) for rank in ranks][0])
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def contenders(peal, built, folder):
    found = {"peal": lambda made, sizes: run_peal(made, peal, sizes, folder)}
    if "openmpi" in built:
        for variant in ("tcp", "ucx"):
            found[f"Open MPI {variant}"] = lambda made, sizes, v=variant: run_open_mpi(made, built["openmpi"], sizes, v)
    if "gloo" in built:
        for algorithm in ("ring", "halving_doubling"):
            found[f"gloo {algorithm}"] = lambda made, sizes, a=algorithm: run_gloo(made, built["gloo"], sizes, a)
    return found


def table(medians, sizes):
    names = list(medians)
    lines = [f"{'size (B)':>10}" + "".join(f"{name:>23}" for name in names) + "   best peer / peal"]
    for size, _ in sizes:
        times = {name: medians[name][size] for name in names}
        peers = {name: time for name, time in times.items() if name != "peal"}
        ratio = f"{min(peers.values()) / times['peal']:19.2f}" if peers else ""
        lines.append(f"{size:>10}" + "".join(f"{times[name]:>20.1f} us" for name in names) + ratio)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="peal beside Open MPI and gloo between two hosts of one machine.")
    parser.add_argument("peal", help="all_reduce_perf")
    parser.add_argument("--rate", help="of each link in each direction, as tc says it: 1gbit; unlimited without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=64 << 20, help="largest size in bytes")
    parser.add_argument("--json", help="write all times here")
    parser.add_argument("--install", action="store_true", help="install Debian's packages of the peers first")
    arguments = parser.parse_args()
    if arguments.install:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], check=True)
    sizes = [(size, n) for size, n in SIZES if size <= arguments.most]
    peal = os.path.abspath(arguments.peal)
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        built = build(folder)
        run = contenders(peal, built, folder)
        with hosts.Hosts(2, arguments.rate) as made:
            for number in range(arguments.rounds):
                for name in list(run):
                    try:
                        found = run[name](made, sizes)
                    except Failed as failure:
                        if name == "peal":
                            sys.exit(f"peal: {failure}")
                        print(f"# without {name}, which failed: {failure}")
                        del run[name]
                        times.pop(name, None)
                        continue
                    for size, time_us in found.items():
                        times.setdefault(name, {}).setdefault(size, []).append(time_us)
                print(f"# round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    medians = {name: {size: statistics.median(all_) for size, all_ in of.items()} for name, of in times.items()}
    print(f"# all-reduce, float32 sum, 2 ranks, one on each host, {arguments.rate or 'no limit'}; medians")
    print(table(medians, sizes))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rate": arguments.rate, "rounds": arguments.rounds, "us": times}, file, indent=1)


if __name__ == "__main__":
    main()
