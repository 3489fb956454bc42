#!/usr/bin/python3
"""All-reduce between two hosts over TCP: peal beside Open MPI and gloo, in alternation.

    bench/peers/between_hosts.py [--rate 1gbit] [--rounds 9] [--real-time] [--sizes 8 1048576] [--json FILE]

The hosts are two network namespaces of this machine (tools/hosts/hosts.py), one rank on each; needs root. At every size
each round asks every contender for one batch; printed are medians over the rounds, and the least of peers' times / peal's.
gloo's halving-doubling works in place, and its copy into place is not timed: it is held against peal in place, the others
against peal out of place.
Installs Debian's packages of the peers with --install; a peer that is missing or fails is left out, with a word.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import contenders  # noqa: E402 (found by the line above)
import report  # noqa: E402

sys.path.insert(0, os.path.join(contenders.ROOT, "tools", "hosts"))
import hosts  # noqa: E402 (found by the line above)

SIZES = [8, 1 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20]
BATCH_S = 0.05
OPEN_MPI_FLAGS = {"tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"],
                  "ucx": ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]}


def start_on(made, host, command, **environment):
    said = tempfile.TemporaryFile(mode="w+")
    process = made.start(host, command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                         process_group=0, env=hosts.clean_environment(**environment))
    process.said = said
    return process


IN_PLACE = {"gloo halving_doubling"}


def peal(made, program, mode, transport, name="peal"):
    def start(ranks, control, meeting):
        return [start_on(made, rank, [program, mode, control, meeting], PEAL_RANK=str(rank), PEAL_SIZE=str(ranks),
                         PEAL_ROOT=f"host0:{hosts.ROOT_PORT}", PEAL_LOCAL_RANK="0", PEAL_LOCAL_SIZE="1",
                         PEAL_TRANSPORT=transport)
                for rank in range(ranks)]
    return contenders.Contender(name if mode == "plain" else f"{name} {mode}", "peal", {mode}, start)


def open_mpi(made, program, variant):
    def start(ranks, control, meeting):
        shell, variables = made.remote_shell()
        return [start_on(made, 0, ["mpirun.openmpi", "--mca", "plm_rsh_agent", shell, *OPEN_MPI_FLAGS[variant],
                                   "-x", "UCX_TLS=tcp,self", "--bind-to", "none", "-H", "host0:1,host1:1", "-n", str(ranks),
                                   program, control, meeting],
                         OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **variables)]
    return contenders.Contender(f"Open MPI {variant}", "peer", set(), start)


def gloo(made, program, algorithm):
    def start(ranks, control, meeting):
        store = control + ".store"
        os.mkdir(store)
        return [start_on(made, rank, [program, algorithm, str(rank), str(ranks), made.address(rank), store, control, meeting])
                for rank in range(ranks)]
    return contenders.Contender(f"gloo {algorithm}", "peer", set(), start)


def entrants(made, build, against, transport, say):
    built = contenders.peer_drivers(build, ["Open MPI", "gloo"], say)
    found = [peal(made, os.path.join(build, "bench", "peers", "driver_peal"), mode, transport) for mode in ("plain", "in-place")]
    for name, program in (one.split("=", 1) for one in against):
        found += [peal(made, os.path.abspath(program), mode, transport, f"peal {name}") for mode in ("plain", "in-place")]
    if "Open MPI" in built:
        found += [open_mpi(made, built["Open MPI"], variant) for variant in OPEN_MPI_FLAGS]
    if "gloo" in built:
        found += [gloo(made, built["gloo"], algorithm) for algorithm in ("ring", "halving_doubling")]
    return found


class Comparison:
    """The sessions that are left, and each one's times."""

    def __init__(self, say, real_time):
        self.say, self.sessions, self.times = say, [], {}
        self.priority = " realtime" if real_time else ""

    def start(self, contender):
        try:
            self.sessions.append(contenders.Session(contender, 2))
        except contenders.Failed as failure:
            self.leave_out(contender, failure)

    def leave_out(self, contender, failure):
        if contender.kind == "peal":
            sys.exit(f"peal: {failure}")
        self.say(f"without {contender.name}, which failed: {failure}")

    def ask(self, session, command, wanted):
        """The answer's words after `wanted`; None if the contender failed and is left out from here on."""
        try:
            answer = session.ask(command)
            if answer[0] != wanted:
                raise contenders.Failed(" ".join(answer))
            return answer[1:]
        except contenders.Failed as failure:
            self.leave_out(session.contender, failure)
            session.close()
            self.sessions.remove(session)
            return None

    def measure(self, number, size, rounds):
        calls = {}
        for session in list(self.sessions):
            answer = self.ask(session, f"case {number} all_reduce float {size}", "ok")
            if answer is not None:
                calls[session] = max(1, min(20000, int(BATCH_S / float(answer[0]))))
        for _ in range(rounds):
            for session in list(self.sessions):
                answer = self.ask(session, f"batch {number} {calls[session]}{self.priority}", "batch")
                if answer is not None:
                    times = self.times.setdefault(session.contender.name, {})
                    times.setdefault(size, []).append(float(answer[0]) * 1e6)
        for session in list(self.sessions):
            answer = self.ask(session, f"end {number}", "end")
            if answer is not None and answer[0] != "0":
                sys.exit(f"{session.contender.name}: {answer[0]} wrong elements at {size} bytes")

    def close(self):
        for session in self.sessions:
            session.close()


def table(times, sizes):
    names = list(times)
    lines = [f"{'size (B)':>10}" + "".join(f"{name:>23}" for name in names) + "   best peer / peal"]
    for size in sizes:
        medians = {name: statistics.median(of[size]) for name, of in times.items() if size in of}
        ratios = [time / medians["peal in-place" if name in IN_PLACE else "peal"]
                  for name, time in medians.items() if not name.startswith("peal")]
        ratio = f"{min(ratios):19.2f}" if ratios else ""
        cells = [f"{medians[name]:>20.1f} us" if name in medians else f"{'-':>23}" for name in names]
        lines.append(f"{size:>10}{''.join(cells)}{ratio}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="peal beside Open MPI and gloo between two hosts of one machine.")
    parser.add_argument("--build", default=os.path.join(contenders.ROOT, "build", "release"), help="peal's build folder")
    parser.add_argument("--no-build", action="store_true", help="take what is in the build folder")
    parser.add_argument("--transport", default="auto", choices=["auto", "tcp", "ucx"], help="PEAL_TRANSPORT of peal")
    parser.add_argument("--rate", help="of each link in each direction, as tc says it: 1gbit; unlimited without")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in bytes")
    parser.add_argument("--against", nargs="+", default=[], metavar="NAME=PROGRAM",
                        help="driver_peal of other builds of peal, measured beside")
    parser.add_argument("--only", help="contenders whose names hold one of these, separated by commas; peal always")
    parser.add_argument("--real-time", action="store_true", help="batches before whatever else the machine runs")
    parser.add_argument("--json", help="write all times here")
    parser.add_argument("--install", action="store_true", help="install Debian's packages of the peers first")
    arguments = parser.parse_args()

    def say(text):
        print(f"# {text}", flush=True)
    build = os.path.abspath(arguments.build)
    if arguments.install:
        contenders.install(say)
    if not arguments.no_build:
        contenders.build_peal(build)
    sizes = arguments.sizes
    chosen = [""] if arguments.only is None else ["peal", *arguments.only.split(",")]
    comparison = Comparison(say, arguments.real_time)
    with hosts.Hosts(2, arguments.rate) as made:
        try:
            for contender in entrants(made, build, arguments.against, arguments.transport, say):
                if any(part in contender.name for part in chosen):
                    comparison.start(contender)
            for number, size in enumerate(sizes):
                comparison.measure(number, size, arguments.rounds)
                say(f"{report.size_text(size)} done, load {os.getloadavg()[0]:.1f}")
        finally:
            comparison.close()
    over = "" if arguments.transport == "auto" else f", peal over {arguments.transport}"
    say(f"all-reduce, float32 sum, 2 ranks, one on each host{over}, {arguments.rate or 'no limit'}; medians")
    print(table(comparison.times, sizes))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rate": arguments.rate, "rounds": arguments.rounds, "us": comparison.times}, file, indent=1)


if __name__ == "__main__":
    main()
