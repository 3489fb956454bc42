#!/usr/bin/env python3
"""peal-train --device cuda on simulated GPUs: ten steps of a tiny model on 1 and 2 ranks at several stages give the
losses of the same run on the host, checkpoints go from one to the other, and what is missing is told.

    train_test.py SIMULATED_PEAL_TRAIN FAKE_CUBLAS TEXT PEAL_TRAIN
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, CUBLAS, TEXT, INSTALLED = sys.argv[1:5]
del sys.argv[1:5]
ENVIRONMENT = {**os.environ, "PEAL_THREADS": "64", "PEAL_CHANNELS": "2"}
# Products are added up in another order on the device, and gradients and weights are bf16: ZeRO.md's bound for
# losses is 1e-2, these runs stay a hundred times below it.
LOSS_TOLERANCE = 1e-4


class Train(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="peal-train-cuda-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.text = self.folder / "text"
        self.text.write_text(Path(TEXT).read_text(encoding="utf-8")[:1500], encoding="utf-8")

    def run_program(self, *arguments, **environment):
        command = [PROGRAM, "--text", self.text, "--layers", "1", "--width", "12", "--heads", "3", "--context", "16",
                   "--batch", "2", "--sample", "5", "--eval-every", "0", "--metrics", self.folder / "metrics",
                   *arguments]
        return subprocess.run([str(part) for part in command], env={**ENVIRONMENT, **environment}, text=True,
                              capture_output=True, timeout=100, check=False)

    def train(self, device, *arguments):
        """The events of a run. Its exit status says too that memory and traffic are what the formulas say."""
        cublas = ["--cublas", CUBLAS] if device == "cuda" else []
        (self.folder / "metrics").unlink(missing_ok=True)  # a run that is resumed would add to them
        done = self.run_program("--device", device, *cublas, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in (self.folder / "metrics").read_text(encoding="utf-8").splitlines()]

    def losses(self, events):
        return ([event["loss"] for event in events if event["event"] == "step"]
                + [event["heldOutLoss"] for event in events if event["event"] == "end"])

    def assert_near(self, got, expected):
        self.assertEqual(len(got), len(expected))
        for mine, theirs in zip(got, expected):
            self.assertLess(abs(mine - theirs), LOSS_TOLERANCE * theirs, (got, expected))

    def test_losses_are_the_hosts_at_every_stage(self):
        for ranks in ("1", "2"):
            common = ["--ranks", ranks, "--steps", "10", "--accumulate", ranks]
            host = self.losses(self.train("host", "--stage", "2", *common))
            self.assertLess(host[9], host[0])
            weights = set()
            for stage in ("0", "2", "3"):
                events = self.train("cuda", "--stage", stage, *common)
                self.assertEqual(events[0]["device"], "cuda")
                self.assertIn("cuBLAS 13.0.2", events[0]["blasKernels"])
                self.assertNotIn("residentBytes", events[-1]["ranks"][0], "the host's memory with the device's plan")
                self.assert_near(self.losses(events), host)
                weights.add((events[-1]["weights"], events[-1]["masters"]))
            self.assertEqual(len(weights), 1, "the stages give other bits")

    def test_runs_go_on_from_device_to_host_and_back(self):
        whole = self.losses(self.train("host", "--ranks", "2", "--steps", "6"))
        checkpoint = str(self.folder / "checkpoint")
        first = self.losses(self.train("cuda", "--ranks", "2", "--stage", "3", "--recompute", "--steps", "2", "--save",
                                       checkpoint))
        second = self.losses(self.train("host", "--ranks", "1", "--stage", "0", "--steps", "4", "--resume", checkpoint,
                                        "--save", checkpoint))
        trace = self.folder / "trace"
        third = self.losses(self.train("cuda", "--ranks", "2", "--stage", "1", "--steps", "6", "--resume", checkpoint,
                                       "--trace", str(trace)))
        self.assert_near(first[:2] + second[:2] + third[:2], whole[:6])
        self.assertIn("all-gather", trace.read_text(encoding="utf-8"))
        self.assertIn("model (queueing)", trace.read_text(encoding="utf-8"))

    def test_groups_precisions_and_fused_steps_are_the_hosts(self):
        for choices in (["--stage", "2", "--shard-group", "1", "--reduce", "fp32"],
                        ["--stage", "3", "--shard-group", "1", "--master", "remainder", "--accumulate", "2"],
                        ["--stage", "1", "--no-skip", "--clip", "0", "--bucket-bytes", "2000"]):
            common = ["--ranks", "2", "--steps", "4", *choices]
            host, cuda = self.train("host", *common), self.train("cuda", *common)
            self.assert_near(self.losses(cuda), self.losses(host))
            if "--no-skip" in choices:
                self.assertGreater(cuda[-1]["fusedBuckets"], 0, cuda[-1])

    def test_what_is_missing_is_told(self):
        for environment, arguments, sentences in (
                ({"CUDASIM_DEVICES": "0"}, [], ["--device cuda: there is no GPU for it", "--device host"]),
                ({}, ["--cublas", "/nowhere/libcublas.so"], ["none could be opened. Tried: /nowhere/libcublas.so",
                                                             "libcublas", "--cublas FILE"]),
                ({"CUDASIM_MEMORY_MIB": "300"}, ["--cublas", CUBLAS, "--width", "1536"], ["GiB free", "--recompute"])):
            done = self.run_program("--device", "cuda", "--ranks", "2", *arguments, **environment)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            for sentence in sentences:
                self.assertIn(sentence, done.stderr)

    @unittest.skipIf(Path("/dev/nvidiactl").exists(), "this machine has a GPU")
    def test_the_program_itself_without_a_gpu(self):
        done = subprocess.run([INSTALLED, "--text", self.text, "--device", "cuda"], text=True, capture_output=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, "--device cuda: (this peal-train was built without CUDA|there is no GPU for it)")
        self.assertIn("--device host", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
