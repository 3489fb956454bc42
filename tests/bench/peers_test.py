#!/usr/bin/python3
"""bench/peers on what this machine has: peal, the floors and whichever peers are installed, at few sizes.

    peers_test.py BUILD-FOLDER

Runs bench/peers/run and limits once, without installing or building peal, and judges report.py with made-up samples.
Peers that are not there are skipped, with the sentence that `run` says of them.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "bench", "peers")
sys.path.insert(0, PEERS)
import contenders  # noqa: E402 (found by the line above)
import report  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 120


def run(name, *arguments):
    """(CompletedProcess, JSON report) of a script of bench/peers."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        done = subprocess.run([os.path.join(PEERS, name), "--no-build", "--build", BUILD, "--json", path, *arguments],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if not os.path.exists(path):
            return done, None
        with open(path, encoding="utf-8") as file:
            return done, json.load(file)


class RunTest(unittest.TestCase):
    def test_compares_and_names_what_is_missing(self):
        done, result = run("run", "--no-install", "--collective", "all_reduce,send_recv", "--sizes", "8,4K", "--ranks", "2",
                           "--types", "float", "--batches", "2", "--batch-ms", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        wanted = {(collective, size, memory) for collective in ("all_reduce", "send_recv") for size in (8, 4096)
                  for memory in ("registered", "plain")}
        self.assertEqual({(row["collective"], row["bytes"], row["memory"]) for row in result["rows"]}, wanted)
        for row in result["rows"]:
            self.assertGreater(row["pealUs"], 0)
            if row["floorUs"] is not None:  # no floors without AVX2
                self.assertAlmostEqual(row["toFloor"], row["pealUs"] / row["floorUs"])
        took_part = {sample["contender"] for sample in result["samples"]}
        said = " ".join(one["reason"] for one in result["missing"]) + done.stdout
        for peer in contenders.PEERS:
            if peer not in took_part:
                self.assertIn(peer.split(" ")[0], said)  # not dropped in silence
        for one in result["missing"]:
            print(f"skipped: {one['reason']}")
        self.assertEqual({cliff["bytes"] for cliff in result["cliffs"]}, {3072, 2564})

    def test_inputs_may_be_written_before_each_call(self):
        done, result = run("run", "--fresh", "--no-install", "--peers", "none", "--no-floors", "--collective",
                           "all_reduce,broadcast,all_gather", "--sizes", "1K", "--ranks", "2", "--types", "float", "--batches", "1",
                           "--batch-ms", "1", "--no-cliffs")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("each input is written before its call", done.stdout)
        self.assertTrue(result["fresh"])
        self.assertEqual(len(result["rows"]), 6)

    def test_a_wrong_option_is_told(self):
        done, result = run("run", "--collective", "all_reduct")
        self.assertEqual((done.returncode, result), (2, None))
        self.assertIn("no such collective: all_reduct", done.stderr)

    def test_peal_that_cannot_start_is_a_failure(self):
        done = subprocess.run([os.path.join(PEERS, "run"), "--no-build", "--no-install", "--build", BUILD, "--peers", "none",
                               "--no-floors", "--ranks", "2", "--sizes", "8", "--types", "float"], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False, env={**os.environ, "PEAL_SLOT_BYTES": "nonsense"})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("FAILED: peal registered, 2 ranks: exit status 1", done.stdout)
        self.assertIn("PEAL_SLOT_BYTES", done.stdout)


class LimitsTest(unittest.TestCase):
    def test_measures_limits_and_floors(self):
        done, result = run("limits", "--quick", "--sizes", "64,64K")
        if "need AVX2" in done.stderr:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreaterEqual(len(result["bandwidth"]), 5)
        self.assertTrue(all(one["oneProcessGBs"] > 0 and one["twoProcessesGBs"] > 0 for one in result["bandwidth"]))
        self.assertGreater(result["flagBarrierNs"], 0)
        self.assertTrue({("shared", 64), ("staged", 65536)} <= {(one["variant"], one["bytes"]) for one in result["floors"]})


class FakeContender:
    def __init__(self, name, kind, memory=()):
        self.name, self.kind, self.memory = name, kind, set(memory)


def entry(contender, *batches):
    """batches: (us, switches, probe in ns)."""
    made = report.Entry(contender)
    made.rounds = [[report.Sample(us / 1e6, switches, probe, probe)] for us, switches, probe in batches]
    return made


class ReportTest(unittest.TestCase):
    case = {"collective": "all_reduce", "type": "float", "bytes": 1 << 20, "ranks": 2}

    def setUp(self):
        self.distance = report.Distance(None, None)
        self.distance.saw(*[75] * 20, *[340] * 20)

    def test_near_and_far_are_rows_of_their_own(self):
        peal = entry(FakeContender("peal registered", "peal"), (10, 0, 75), (12, 0, 76), (11, 0, 74), (30, 0, 340), (31, 0, 330), (29, 0, 350))
        peer = entry(FakeContender("MPICH", "peer"), (20, 0, 75), (24, 0, 76), (22, 0, 74), (33, 0, 340), (30, 0, 330), (27, 0, 350))
        rows = report.rows_of(self.case, [peal, peer], self.distance, False)
        self.assertEqual([(row["state"], row["ratio"]) for row in rows], [("near", 2.0), ("far", 1.0)])
        self.assertTrue(all(report.misses_target(row) for row in rows))

    def test_batches_without_a_context_switch_count_where_ranks_have_cpus(self):
        mixed = entry(FakeContender("peal plain", "peal"), (10, 0, 75), (10, 0, 75), (10, 0, 75), (90, 1, 75), (90, 2, 75), (90, 1, 75), (90, 1, 75))
        self.assertEqual(mixed.median(self.distance, "near", False), 10)
        self.assertEqual(mixed.median(self.distance, "near", True), 90)
        self.assertIsNone(mixed.median(self.distance, "far", False))

    def test_without_enough_of_these_the_calmest_half_counts(self):
        batches = [(10, 1, 75), (11, 1, 75), (12, 1, 75), (90, 5, 75), (91, 6, 75), (92, 7, 75)]
        self.assertEqual(entry(FakeContender("peal plain", "peal"), *batches).median(self.distance, "near", False), 11)

    def test_best_peer_and_floor_are_the_quickest(self):
        entries = [entry(FakeContender("peal plain", "peal"), (10, 0, 75)), entry(FakeContender("MPICH", "peer"), (40, 0, 75)),
                   entry(FakeContender("Open MPI", "peer"), (30, 0, 75)), entry(FakeContender("floor shared", "floor", ["registered"]), (1, 0, 75)),
                   entry(FakeContender("floor readv", "floor", ["plain"]), (5, 0, 75))]
        row, = report.rows_of(self.case, entries, self.distance, False)
        self.assertEqual((row["state"], row["peer"], row["ratio"], row["floor"], row["toFloor"]), ("all", "Open MPI", 3.0, "floor readv", 2.0))
        self.assertTrue(report.misses_floor(row))

    def test_cliffs_compare_within_a_round(self):
        power = entry(FakeContender("peal plain", "peal", ["plain"]), (10, 0, 75), (20, 0, 75), (30, 0, 75))
        steep = entry(FakeContender("peal plain", "peal", ["plain"]), (12, 0, 75), (24, 0, 75), (90, 0, 75))
        cliff, = report.cliffs_of(self.case, power, [(786432, steep)])
        self.assertAlmostEqual(cliff["costs"], 1.2)
        self.assertIn("CLIFF", report.cliff_line(cliff))

    def test_targets(self):
        for arguments, wanted in ((("all_reduce", "float", 8, 2, "registered"), 1.5), (("all_reduce", "float", 1 << 20, 8, "plain"), 1.3),
                                  (("all_reduce", "float", 64 << 20, 2, "plain"), 1.2), (("broadcast", "float", 1 << 20, 2, "registered"), 1.5),
                                  (("reduce", "float", 1 << 20, 2, "registered"), 1.0), (("all_reduce", "float", 2 << 20, 2, "plain"), 1.0)):
            self.assertEqual(report.target_of(*arguments), wanted, arguments)

    def test_sizes(self):
        self.assertEqual([report.size_of(text) for text in ("8", "32K", "64M", "1G")], [8, 32768, 64 << 20, 1 << 30])
        self.assertEqual([report.size_text(size) for size in (8, 1000, 32768, 64 << 20)], ["8", "1000", "32K", "64M"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
