#!/usr/bin/env python3
"""tools/gpu-check with fakes in place of the driver, the build and the programs: it goes on after whatever fails,
stops what hangs with all its processes, keeps to its time, and writes what there was.

    gpu_check_test.py PROJECT_FOLDER
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROJECT = Path(sys.argv.pop(1))
BENCHES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv")
ROWS = {"rows": [{"name": "a slow copy", "seconds": 1.0, "ratio_to_copy": 0.5, "target_ratio": 0.9},
                 {"name": "a quick one", "seconds": 1e-6, "target_seconds": 6e-6}]}


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


class Root:
    """A project folder with a copy of the script, and programs that do nothing."""

    def __init__(self, folder):
        self.folder = Path(folder)
        (self.folder / "tools").mkdir()
        text = (PROJECT / "tools/gpu-check").read_text(encoding="utf-8")
        assert "CASE_S = 40" in text
        (self.folder / "tools/gpu-check").write_text(text.replace("CASE_S = 40", "CASE_S = 5"), encoding="utf-8")
        self.build = self.folder / "build/release"
        self.kernels = self.folder / "kernels.json"
        self.kernels.write_text(json.dumps(ROWS), encoding="utf-8")
        for program in ("bin/nvidia-smi", "bin/cmake", "tools/setup-packages", "build/release/libpeal.so",
                        "build/release/tools/info/peal-info",
                        *(f"build/release/bench/{bench}_perf" for bench in BENCHES),
                        *(f"build/release/tests/cuda/hardware/cuda_{test}_hardware"
                          for test in ("api_collectives", "api_calls", "api_graphs", "api_adamw", "nodes"))):
            script(self.folder / program, "exit 0")
        script(self.build / "bench/micro/gpu/gpu_bench", f"cp {self.kernels} $1; echo the table")
        self.train("3.5")
        peers = self.folder / "bench/micro/gpu/compare_peers.py"
        peers.parent.mkdir(parents=True)
        peers.write_text("print('no peers')\n", encoding="utf-8")

    def train(self, loss_on_two_ranks):
        """A peal-train whose last argument is the file of its metrics."""
        script(self.build / "tools/train/peal-train",
               f'loss=3.5; [ "$4" = 2 ] && loss={loss_on_two_ranks}; for last; do :; done\n'
               """printf '{"event": "step", "loss": %s}\\n' "$loss" > "$last"; echo compute: here""")

    def run(self, *arguments):
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run([sys.executable, self.folder / "tools/gpu-check", *arguments], text=True, timeout=60,
                              capture_output=True, env={**os.environ, "PATH": path}, check=False)
        report = self.folder / "build/gpu-check.json"
        return done, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpu-check-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = Root(self.folder)

    def test_all_is_well(self):
        done, report = self.root.run()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual((report["failed"], report["skipped"]), ([], []))
        self.assertEqual(report["kernels"], ROWS)
        self.assertEqual(report["peers"], ["no peers"])
        names = [check["name"] for check in report["checks"]]
        self.assertGreater(len(names), 60)
        self.assertEqual(len(set(names)), len(names))
        # What is timed comes before the long list.
        self.assertLess(names.index("gpu_bench"), 12)
        self.assertIn("the table", done.stdout)
        self.assertIn("target missed: a slow copy", done.stdout)
        self.assertNotIn("target missed: a quick one", done.stdout)

    def test_goes_on_after_what_fails_or_hangs(self):
        script(self.root.folder / "tools/setup-packages", "echo no registry; exit 1")
        (self.root.build / "bench/reduce_perf").unlink()
        child = self.root.folder / "child"
        # Of two processes the one that is not waited for holds the pipe.
        script(self.root.build / "bench/broadcast_perf", f'[ "$1$2" = -t2 ] || exit 0; sleep 900 & echo $! > {child}; wait')
        script(self.root.build / "bench/micro/gpu/gpu_bench", f"cp {self.root.kernels} $1; echo a part; exit 1")
        done, report = self.root.run()
        self.assertEqual(done.returncode, 1)
        failed = report["failed"]
        self.assertIn("packages", failed)
        self.assertIn("gpu_bench", failed)
        self.assertIn("reduce, 2 ranks as threads", failed)
        self.assertIn("broadcast, 2 ranks as threads", failed)
        self.assertNotIn("broadcast, 2 ranks as processes", failed)
        self.assertEqual(report["kernels"], ROWS)
        by_name = {check["name"]: check for check in report["checks"]}
        self.assertEqual(by_name["broadcast, 2 ranks as threads"]["exit_status"], 124)
        self.assertEqual(by_name["reduce, 2 ranks as threads"]["exit_status"], 127)
        self.assertIn("no registry", by_name["packages"]["output"])
        self.assertEqual(report["skipped"], [])
        end = time.monotonic() + 60
        while Path(f"/proc/{child.read_text().strip()}/cmdline").exists() and time.monotonic() < end and \
                b"sleep" in Path(f"/proc/{child.read_text().strip()}/cmdline").read_bytes():
            time.sleep(0.05)
        self.assertLess(time.monotonic(), end, "a process was left behind")

    def test_losses_that_are_not_the_hosts_fail(self):
        self.root.train("3.6")
        done, report = self.root.run()
        self.assertEqual((done.returncode, report["failed"]), (1, ["losses of peal-train on cuda, 2 ranks"]))

    def test_keeps_to_its_time(self):
        script(self.root.build / "bench/all_reduce_perf", "sleep 900")
        begin = time.monotonic()
        done, report = self.root.run("--minutes", "0.05")
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("peers", report["skipped"])
        self.assertIn("no time for", done.stdout)

    def test_without_a_build_nothing_is_run(self):
        script(self.root.folder / "bin/cmake", "echo no nvcc; exit 1")
        done, report = self.root.run()
        self.assertEqual((done.returncode, report["failed"]), (1, ["configure"]))


if __name__ == "__main__":
    unittest.main()
