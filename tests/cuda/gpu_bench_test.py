#!/usr/bin/env python3
"""gpu_bench, which tools/gpu-check runs, on simulated GPUs: every part gives its rows, in a table and as JSON. Times
mean nothing here.

    gpu_bench_test.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DIVISOR = 1 << 20
ROWS = ["device-to-device copy, 512 MiB", "copy loop, 512 MiB", "AdamW, 1e+08 elements", "AdamW, 1e+09 elements",
        "sum of 8 arrays of bfloat16, 128 MiB each", "all-reduce of 8 ranks on this GPU, 8 KiB, in a graph",
        "all-reduce of 2 ranks on this GPU, 64 MiB"]


def main():
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
        file = Path(folder) / "kernels.json"
        environment = {**os.environ, "PEAL_THREADS": "64", "PEAL_CHANNELS": "1", "PEAL_LOG": "none"}
        done = subprocess.run([sys.argv[1], file, str(DIVISOR)], text=True, capture_output=True, timeout=100,
                              env=environment, check=False)
        print(done.stdout + done.stderr)
        assert done.returncode == 0, done.returncode
        result = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in result["rows"]}
    assert len(rows) == len(result["rows"]) == 22, len(result["rows"])
    for name in ROWS:
        assert rows[name]["seconds"] > 0, rows[name]
        assert name in done.stdout
    assert rows["AdamW, 1e+09 elements"]["target_ratio"] == 0.9
    assert rows["all-reduce of 8 ranks on this GPU, 8 KiB, in a graph"]["target_seconds"] == 6e-6
    assert "ratio_to_copy" in rows["copy loop, 512 MiB"]


if __name__ == "__main__":
    main()
