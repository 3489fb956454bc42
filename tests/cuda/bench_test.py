#!/usr/bin/env python3
"""all_reduce_perf on simulated GPUs: threads and processes, devices of their own and a shared one, registered
buffers, CUDA graphs; what it prints of devices, and what it refuses.

    bench_test.py SIMULATED_ALL_REDUCE_PERF
"""
import os
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)
SMALL = ["-b", "4", "-e", "4K", "-f", "32", "-n", "2", "-w", "1", "-c", "1"]
ENVIRONMENT = {**os.environ, "PEAL_THREADS": "64", "PEAL_CHANNELS": "2"}


def run(*arguments):
    return subprocess.run([PROGRAM, *SMALL, *arguments], env=ENVIRONMENT, text=True, capture_output=True, timeout=100,
                          check=False)


class Bench(unittest.TestCase):
    def measure(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
        self.assertEqual([row[0] for row in rows], ["4", "128", "4096"])
        for row in rows:
            self.assertEqual((row[8], row[12]), ("0", "0"), row)  # wrong elements, out of place and in place
        return done.stdout

    def test_threads_on_devices_of_their_own(self):
        output = self.measure("--device", "auto", "-t", "3")
        for device in range(3):
            self.assertIn(f"device  {device} [GPU memory]", output)
        self.assertIn("on a CUDA stream", output)

    def test_threads_that_share_a_device(self):
        self.assertNotIn("device  0 [GPU memory]", self.measure("--device", "1", "-t", "2"))

    def test_processes(self):
        self.measure("--device", "auto", "--ranks", "2")

    def test_registered_buffers(self):
        self.measure("--device", "0", "-t", "2", "-R", "1")

    def test_graphs(self):
        self.assertIn("in a CUDA graph, launched 3 times", self.measure("--device", "0", "-t", "2", "-G", "3"))

    def test_alone(self):
        self.measure("--device", "0")

    def test_host_memory(self):
        self.assertIn("[host memory]", self.measure("-t", "2"))

    def test_refusals(self):
        for arguments, sentence in ((["--device", "gpu"], "neither host, auto nor a GPU's number"),
                                    (["--device", "99"], "99")):
            done = run(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stderr)


if __name__ == "__main__":
    unittest.main()
