#!/usr/bin/python3
"""tools/demo and tools/check, which take minutes and no arguments, start nothing when they are given one."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    faults = []
    for name in ("demo", "check"):
        for argument, status in (("--help", 0), ("-h", 0), ("--hepl", 2), ("release", 2)):
            run = subprocess.run([ROOT / "tools" / name, argument], capture_output=True, text=True, timeout=60, check=False)
            told = run.stdout if status == 0 else run.stderr
            if run.returncode != status or "==" in run.stdout or (status == 2 and argument not in told) or len(told) < 60:
                faults.append(f"tools/{name} {argument}: exit status {run.returncode}, {told!r}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
