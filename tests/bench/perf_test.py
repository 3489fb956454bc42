#!/usr/bin/python3
"""The benches as a user and as a script written for nccl-tests see them: perf_test.py FOLDER-OF-THE-BENCHES"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

import perf_output

FOLDER = ""
LIMIT_S = 100  # of one run; a bench that takes longer hangs

BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "sendrecv": lambda n: 1,
}
IN_PLACE = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"}
ROOTED = {"broadcast", "gather", "reduce", "scatter"}
REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
SHARED_OUT = {"reduce_scatter", "all_gather", "alltoall", "gather", "scatter"}  # a rank's share is rounded down to 16 bytes


def clean_environment(**more):
    """Without what a launcher or a setting of the caller would change."""
    kept = {name: value for name, value in os.environ.items()
            if not re.match(r"PEAL_|NCCL_|OMPI_|PMI|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_", name)}
    kept.update(more)
    return kept


def run(name, *arguments, environment=None):
    return subprocess.run([os.path.join(FOLDER, name + "_perf"), *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, env=environment or clean_environment(), check=False)


class BenchTest(unittest.TestCase):
    def measure(self, name, *arguments, environment=None):
        """Runs a bench that must succeed."""
        done = run(name, *arguments, environment=environment)
        self.assertEqual(done.returncode, 0, f"{name} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return perf_output.parse(done.stdout)

    def assert_right(self, output):
        self.assertEqual(output.out_of_bounds, 0)
        self.assertEqual(output.out_of_bounds_verdict, "OK")
        for row in output.rows:
            self.assertEqual(row.out_of_place.wrong, 0, row)

    def assert_sentence(self, done, code, pattern):
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, pattern)


class Columns(BenchTest):
    def check_half(self, half, row, factor, ranks):
        if ranks > 1:
            self.assertGreater(half.time_us, 0)  # alone, in place, there is nothing to do
        # Two decimals are printed of the time and of the bandwidth.
        if half.time_us > 0.02:
            self.assertLessEqual(half.algbw, row.size / (half.time_us - 0.0051) / 1e3 + 0.0051)
        self.assertGreaterEqual(half.algbw, row.size / (half.time_us + 0.0051) / 1e3 - 0.0051)
        self.assertAlmostEqual(half.busbw, half.algbw * factor, delta=0.0151)
        self.assertEqual(half.wrong, 0)

    def check_table(self, name, ranks, *rank_flags):
        output = self.measure(name, *rank_flags, "-b", "1K", "-e", "64K", "-f", "8", "-n", "3")
        self.assertEqual(len(output.rows), 3)
        self.assert_right(output)
        for row, asked in zip(output.rows, (1024, 8192, 65536)):
            share = asked // 4 // ranks & ~3
            self.assertEqual(row.size, share * ranks * 4 if name in SHARED_OUT else asked)
            self.assertEqual(row.count, share if name in SHARED_OUT else asked // 4)
            self.assertEqual(row.type, "float")
            self.assertEqual(row.redop, "sum" if name in REDUCING else "none")
            self.assertEqual(row.root, 0 if name in ROOTED else -1)
            self.check_half(row.out_of_place, row, BUS_FACTOR[name](ranks), ranks)
            if name in IN_PLACE:
                self.check_half(row.in_place, row, BUS_FACTOR[name](ranks), ranks)
            else:
                self.assertEqual((row.in_place.time_us, row.in_place.wrong), (0, None))
        halves = [row.out_of_place for row in output.rows]
        halves += [row.in_place for row in output.rows if name in IN_PLACE]
        self.assertAlmostEqual(output.avg_busbw, sum(half.busbw for half in halves) / len(halves), delta=0.0051)
        self.assertEqual([int(device[0]) for device in output.devices], list(range(ranks)))
        return output

    def test_every_bench_with_one_two_and_three_processes(self):
        for name in BUS_FACTOR:
            for ranks in (1, 2, 3):
                with self.subTest(bench=name, ranks=ranks):
                    output = self.check_table(name, ranks, "--ranks", str(ranks))
                    self.assertEqual(len({device[2] for device in output.devices}), ranks, "one process per rank")

    def test_every_bench_with_threads(self):
        for name in BUS_FACTOR:
            with self.subTest(bench=name):
                output = self.check_table(name, 3, "-g", "3")
                self.assertEqual(len({device[2] for device in output.devices}), 1, "one process")
        self.check_table("all_reduce", 4, "-t", "2", "-g", "2", "-p", "1")

    def test_one_rank_unless_asked(self):
        output = self.measure("all_reduce", "-b", "8", "-e", "8")
        self.assertEqual(len(output.devices), 1)
        self.assertIn("--ranks N", output.comment_with("# note: 1 rank"))


class Results(BenchTest):
    def test_a_misspelt_variable_is_told_once(self):
        done = run("all_reduce", "--ranks", "2", "-b", "1K", "-e", "1K", environment=clean_environment(PEAL_SLOTBYTES="1"))
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"^peal \[\d+\] warn: the environment sets PEAL_SLOTBYTES, which peal does not "
                                      r"know: it has no effect\. Was PEAL_SLOT_BYTES meant\?\n$")

    def test_every_type_and_reduction(self):
        for name in REDUCING:
            for flags in (("--ranks", "3"), ("-g", "2", "-R", "1")):
                with self.subTest(bench=name, flags=flags):
                    output = self.measure(name, *flags, "-b", "5000", "-e", "5000", "-n", "1", "-d", "all", "-o", "all")
                    self.assert_right(output)
                    self.assertEqual(len({(row.type, row.redop) for row in output.rows}), 12 * 6)

    def test_every_type_and_root_of_copies(self):
        output = self.measure("broadcast", "--ranks", "3", "-b", "777", "-e", "777", "-n", "1", "-d", "all", "-r", "all")
        self.assert_right(output)
        self.assertEqual(len({(row.type, row.root) for row in output.rows}), 12 * 3)
        for name in ("all_gather", "sendrecv", "alltoall", "gather", "scatter"):
            self.assert_right(self.measure(name, "--ranks", "3", "-b", "777", "-e", "777", "-n", "1", "-d", "all", "-r", "all"))

    def test_odd_sizes_and_none(self):
        for name in BUS_FACTOR:
            with self.subTest(bench=name):
                output = self.measure(name, "--ranks", "2", "-b", "0", "-e", "21", "-i", "7", "-n", "2", "-d", "int8")
                self.assertEqual(len(output.rows), 4)
                self.assert_right(output)

    def test_ways_of_running(self):
        for flags in (["-m", "3"], ["-z", "1"], ["-z", "2"], ["-z", "3"], ["--stream"], ["-y", "0", "-z", "1", "-m", "2"],
                      ["--stream", "-m", "3"], ["-C", "1"], ["-u", "1"], ["-R", "2"], ["-w", "0"], ["-c", "3"],
                      ["--deterministic"], ["-T", "30"], ["-a", "0"], ["-a", "2"], ["-a", "3"]):
            with self.subTest(flags=flags):
                output = self.measure("all_reduce", "--ranks", "2", "-b", "16K", "-e", "64K", "-f", "4", "-n", "4", *flags)
                self.assertEqual(len(output.rows), 2)
                self.assert_right(output)

    def test_cycles(self):
        output = self.measure("all_reduce", "--ranks", "2", "-b", "64", "-e", "128", "-f", "2", "-N", "3")
        self.assertEqual([row.size for row in output.rows], [64, 128] * 3)

    def test_no_check_prints_not_available(self):
        output = self.measure("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-c", "0")
        self.assertIsNone(output.rows[0].out_of_place.wrong)
        self.assertIsNone(output.rows[0].in_place.wrong)

    def test_one_place_only(self):
        out_only = self.measure("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-O", "1").rows[0]
        self.assertGreater(out_only.out_of_place.time_us, 0)
        self.assertEqual(out_only.in_place.time_us, 0)
        in_only = self.measure("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-O", "0").rows[0]
        self.assertEqual(in_only.out_of_place.time_us, 0)
        self.assertGreater(in_only.in_place.time_us, 0)

    def test_timestamps_and_memory(self):
        output = self.measure("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-S", "1", "-M", "1")
        self.assertRegex(output.rows[0].timestamp, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
        self.assertRegex(output.comment_with("# rank 1"), r"^# rank 1( +\d+\.\d\d){4}$")

    def test_bound(self):
        output = self.measure("all_reduce", "--ranks", "3", "-b", "24K", "-e", "24K")
        at = [index for index, line in enumerate(output.comments) if line.startswith("# bound")][0]
        fields = output.comments[at + 2].split()
        self.assertEqual(fields[:2], ["#", "24576"])
        bound, sent, busiest, ratio = (float(field) for field in fields[6:10])
        self.assertEqual(bound, 2 * 24576 * 2 // 3)
        self.assertGreater(sent, 0)
        self.assertGreaterEqual(busiest, sent)
        self.assertAlmostEqual(ratio, sent / bound, delta=0.001)

    def test_least_bandwidth(self):
        few = ("all_reduce", "--ranks", "2", "-b", "64", "-e", "64")
        for variable in ("PEAL_TESTS_MIN_BW", "NCCL_TESTS_MIN_BW"):
            done = run(*few, environment=clean_environment(**{variable: "1e6"}))
            self.assertEqual(done.returncode, 1)
            self.assertEqual(perf_output.parse(done.stdout).avg_busbw_verdict, "FAILED")
            output = self.measure(*few, environment=clean_environment(**{variable: "1e-9"}))
            self.assertEqual(output.avg_busbw_verdict, "OK")


class Reports(BenchTest):
    def test_json_is_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            for flag in ("--json", "-J"):
                output = self.measure("reduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "2", flag, path)
                with open(path, encoding="utf-8") as file:
                    report = json.load(file)
                self.assertEqual(report["version"], 2)
                self.assertEqual(report["config"]["iterations"], 20)
                self.assertEqual(len(report["config"]["devices"]), 2)
                self.assertEqual(len(report["results"]), len(output.rows))
                for row, result in zip(output.rows, report["results"]):
                    self.assertEqual((row.size, row.count, row.type, row.redop, row.root),
                                     (result["size"], result["count"], result["type"], result["redop"],
                                      int(result["root"])))
                    for half, half_json in ((row.out_of_place, result["out_of_place"]),
                                            (row.in_place, result["in_place"])):
                        self.assertAlmostEqual(half.time_us, half_json["time"], delta=0.006 + 1e-3 * half.time_us)
                        self.assertAlmostEqual(half.busbw, half_json["bus_bw"], delta=0.006)
                        self.assertEqual(half.wrong, half_json["nwrong"])
                    self.assertEqual(result["peal"]["bound_bytes_per_rank"], row.size / 2)
                self.assertEqual(report["out_of_bounds"], {"count": 0, "okay": "true"})
                self.assertEqual(report["average_bus_bandwidth"]["okay"], "unchecked")
                self.assertAlmostEqual(report["average_bus_bandwidth"]["bandwidth"], output.avg_busbw, delta=1e-5)
                self.assertEqual(report["errors"], [])

    def test_plot_is_an_svg_with_curves(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "busbw.svg")
            self.measure("all_reduce", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "4", "--plot", path)
            text = xml.dom.minidom.parse(path).toxml()
            for wanted in ("all_reduce_perf, 2 processes", "out of place", "in place", "busbw (GB/s)", "64K"):
                self.assertIn(wanted, text)


class Faults(BenchTest):
    def test_wrong_command_lines(self):
        for arguments, pattern in (
                (["--frobnicate"], "--frobnicate"),
                (["-b", "8Q"], r'--minbytes "8Q" is not a size'),
                (["-b", "2M", "-e", "1M"], "larger than --maxbytes"),
                (["-d", "quad"], r'data type "quad" is unknown. One of: int8, '),
                (["-o", "xor"], r'reduction "xor" is unknown. One of: sum, '),
                (["-n", "0"], "--iters"),
                (["--min_bw", "nan"], "--min_bw: nan is not a number from -1 to"),
                (["--nccl_min_bw", "inf"], "--nccl_min_bw: inf is not a number"),
                (["--ranks", "2", "-g", "2"], "--ranks 2 asks for processes, -t/-g for 2 threads"),
                (["--json", "/nonexistent/x.json"], "cannot write /nonexistent/x.json: No such file"),
                (["--plot", "x.gif"], "must end in .svg"),
                (["-b", "500T", "-e", "500T"], "do not fit")):
            with self.subTest(arguments=arguments):
                self.assert_sentence(run("all_reduce", *arguments), 2, pattern)
        self.assert_sentence(run("broadcast", "--ranks", "2", "-b", "8", "-e", "8", "-r", "2"), 2,
                             "root 2 is no rank: there are 2 ranks, 0 to 1")

    def test_help_lists_the_flags(self):
        done = run("all_reduce", "-h")
        self.assertEqual(done.returncode, 0)
        for flag in ("-t,--nthreads", "-b,--minbytes", "-G,--cudagraph", "--ranks", "--plot"):
            self.assertIn(flag, done.stdout)

    def test_flags_without_meaning_say_so(self):
        output = self.measure("all_reduce", "-b", "8", "-e", "8", "-G", "3")
        self.assertIn("no CUDA graphs", output.comment_with("# note: -G"))

    def test_a_launcher_and_ranks_at_once(self):
        launched = clean_environment(PEAL_RANK="0", PEAL_SIZE="2", PEAL_ROOT="127.0.0.1:1")
        self.assert_sentence(run("all_reduce", "--ranks", "2", environment=launched), 2,
                             r"the launcher \(peal\) has started 2 ranks, and --ranks 2 asks for more")
        self.assert_sentence(run("all_reduce", "-g", "2", environment=launched), 2, "leave -t and -g out")

    def test_a_killed_rank_is_named_and_nobody_hangs(self):
        bench = subprocess.Popen([os.path.join(FOLDER, "all_reduce_perf"), "--ranks", "3", "-b", "64", "-e", "64", "-N",
                                  "0", "-n", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment())
        try:
            pids = {}
            for line in bench.stdout:
                device = re.match(r"#\s+Rank\s+(\d+) Group\s+\d+ Pid\s+(\d+) ", line)
                if device:
                    pids[int(device[1])] = int(device[2])
                if not line.startswith("#"):
                    break  # a row: all ranks are at work
            os.kill(pids[1], signal.SIGKILL)
            _, errors = bench.communicate(timeout=LIMIT_S)
        finally:
            bench.kill()
        self.assertEqual(bench.returncode, 128 + signal.SIGKILL, errors)
        self.assertIn("rank 1 was killed by signal 9", errors)
        for pid in pids.values():
            self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_interrupt_ends_all(self):
        bench = subprocess.Popen([os.path.join(FOLDER, "all_reduce_perf"), "--ranks", "2", "-b", "64", "-e", "64", "-N",
                                  "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment(),
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            for line in bench.stdout:
                if not line.startswith("#"):
                    break
            bench.send_signal(signal.SIGINT)
            bench.communicate(timeout=LIMIT_S)
        finally:
            bench.kill()
        self.assertEqual(bench.returncode, -signal.SIGINT)


class Launchers(BenchTest):
    def launch(self, variables_of, *arguments):
        """Starts two ranks as a launcher would and returns the output of rank 0."""
        command = [os.path.join(FOLDER, "all_reduce_perf"), *arguments]
        ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=clean_environment(**variables_of(rank))) for rank in range(2)]
        try:
            ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, (_, errors) in zip(ranks, ended):
            self.assertEqual(rank.returncode, 0, errors)
        self.assertEqual(ended[1][0], "", "only rank 0 prints")
        return perf_output.parse(ended[0][0])

    def test_variables_of_peal(self):
        output = self.launch(lambda rank: {"PEAL_RANK": str(rank), "PEAL_SIZE": "2"}, "-b", "1K", "-e", "1K")
        self.assert_right(output)
        self.assertEqual(len(output.devices), 2)
        self.assertIn("launcher: peal", output.comment_with("# ranks:"))

    def test_variables_of_torchrun(self):
        with socket.socket() as probe:  # a port that was free a moment ago
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        output = self.launch(lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                           "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                           "MASTER_PORT": str(port)}, "-b", "1K", "-e", "1K")
        self.assert_right(output)
        self.assertIn("launcher: torchrun", output.comment_with("# ranks:"))

    def mpirun(self, program, *flags):
        try:
            done = subprocess.run([program, *flags, "-np", "2", os.path.join(FOLDER, "all_reduce_perf"), "-b", "1K",
                                   "-e", "1K"], capture_output=True, text=True, timeout=LIMIT_S,
                                  env=clean_environment(), check=False)
        except FileNotFoundError:
            self.skipTest(f"{program} is not installed")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        output = perf_output.parse(done.stdout)
        self.assert_right(output)
        self.assertEqual(len(output.devices), 2)
        return output

    def test_open_mpi(self):
        output = self.mpirun("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")
        self.assertIn("launcher: openmpi", output.comment_with("# ranks:"))

    def test_mpich(self):
        output = self.mpirun("mpirun.mpich")
        self.assertIn("launcher: pmi", output.comment_with("# ranks:"))


if __name__ == "__main__":
    FOLDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
