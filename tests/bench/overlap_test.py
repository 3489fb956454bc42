#!/usr/bin/python3
"""zero_overlap runs, and its figures agree with each other and with the timeline model of docs/ZERO-ENGINE.md. Nothing here
depends on how fast the machine is.

    overlap_test.py PROGRAM
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv[1]
PARAMETERS, UNITS, TENSORS = 3 * 4 * 1000, 3, 4
FLOPS = 1e12
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "ZERO.md"


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False)


def exposed(send_s, pieces, compute_s):
    return max(send_s / pieces, send_s - (pieces - 1) / pieces * compute_s)


class Overlap(unittest.TestCase):
    def check_case(self, case, ranks, stage):
        of_bucket = max(1, case["bucketBytes"] // 2 // 1000)
        buckets = -(-UNITS * TENSORS // of_bucket) if stage < 3 else max(1, 2 * PARAMETERS // case["bucketBytes"])
        self.assertEqual(case["buckets"], buckets)
        once = 2 * case["parameters"] * (ranks - 1) / ranks / case["bytesPerSecond"]
        # Sent beside the backward pass (at stage 3 units are gathered again), and beside the forward pass.
        reduced, gathered = {0: (2 * once, 0), 3: (2 * once, once)}.get(stage, (once, once))
        forward = 2 * case["parameters"] * case["tokens"] / FLOPS
        send_ms = 1e3 * (reduced + gathered)
        self.assertAlmostEqual(case["predictedCommunicationMs"] / send_ms, 1, places=6)
        self.assertAlmostEqual(case["oneBucketMs"] / (send_ms / case["buckets"]), 1, places=6)
        model_ms = 1e3 * (exposed(reduced, case["buckets"], 2 * forward) + exposed(gathered, case["buckets"], forward))
        self.assertAlmostEqual(case["predictedExposedMs"] / model_ms, 1, places=6)
        self.assertGreater(case["communicationMs"], 0)
        # Waiting may take longer than what is waited for: to be woken takes time, too.
        hidden = max(0.0, 1 - case["exposedMs"] / case["communicationMs"])
        self.assertAlmostEqual(case["hiddenShare"], hidden, places=6)
        self.assertGreaterEqual(case["computeMs"], 0.999 * 3e3 * forward)
        self.assertGreaterEqual(case["stepMs"], case["computeMs"])

    def check_run(self, ranks, stage, compute):
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "told.json"
            done = run("--ranks", ranks, "-p", PARAMETERS, "--units", UNITS, "--tensors", TENSORS, "--stage", stage,
                       "--compute", compute, "-s", 1, 5, 64, "-t", 0.5, 3, "-n", 2, "--flops", FLOPS, "-J", told)
            self.assertEqual(done.returncode, 0, done.stderr)
            whole = json.loads(told.read_text(encoding="ascii"))
        self.assertEqual((whole["ranks"], whole["stage"]), (ranks, stage))
        fastest = max(case["bytesPerSecond"] for case in whole["results"])
        self.assertEqual(whole["bytesPerSecond"], fastest)
        self.assertAlmostEqual(whole["tokensToHide"] / (FLOPS / fastest * (ranks - 1) / ranks), 1, places=6)
        self.assertEqual([case["load"] for case in whole["results"]], 3 * [0.5] + 3 * [3])
        for case in whole["results"]:
            # Units of one size may leave out what does not fill all their tensors.
            self.assertEqual(case["parameters"], PARAMETERS if stage < 3 else
                             case["buckets"] * TENSORS * (PARAMETERS // (case["buckets"] * TENSORS)))
            self.check_case(case, ranks, stage)
            # From T* on, all but one bucket of each pass hides, says the model.
            if case["load"] > 1 and case["bytesPerSecond"] == fastest:
                self.assertAlmostEqual(case["predictedExposedMs"] / case["oneBucketMs"], 1, places=6)
        table = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(len(table), 1 + 6, done.stdout)

    def test_stages(self):
        self.check_run(2, 0, "busy")
        self.check_run(2, 1, "sleep")
        self.check_run(3, 2, "sleep")
        self.check_run(2, 3, "sleep")

    def test_the_guides_commands(self):
        """Without hosts, so times differ: what is said of the case, the columns, and what a load and a bucket are do not."""
        told = re.findall(r"^    \$ .*zero_overlap( .*)\n((?:    .*\n)+)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(len(told), 2)
        for arguments, page in told:
            done = run("--ranks", 2, *re.sub(r"-n \d+", "-n 1", arguments).split())
            self.assertEqual(done.returncode, 0, done.stderr)
            ours, theirs = done.stdout.splitlines(), [line.strip() for line in page.splitlines()]
            self.assertEqual(ours[0].strip(), theirs[0])
            self.assertEqual([line.split()[:3] for line in ours[3:]], [line.split()[:3] for line in theirs[3:]])

    def test_one_rank_is_refused(self):
        done = run()
        self.assertEqual(done.returncode, 2)
        self.assertIn("at least 2 ranks", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
