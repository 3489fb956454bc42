#!/usr/bin/env python3
"""libpeal.so with CUDA is one binary for every machine.

    library_test.py LIBPEAL

Below 10 MB, depends on no CUDA library, exports nothing of the CUDA runtime that is linked into it, and holds device
code. That it works where there is no driver is shown by every other test here.
"""
import re
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 10 * 1000 * 1000


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    library = Path(sys.argv[1]).resolve()
    faults = []
    size = library.stat().st_size
    if size >= MOST_BYTES:
        faults.append(f"{size} bytes; at most {MOST_BYTES}")
    needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", str(library)))
    faults += [f"depends on {name}" for name in needed if re.match(r"lib(cuda|nv)", name)]
    if not needed:
        faults.append("readelf names no dependency at all")
    exported = [line.split()[-1] for line in output("nm", "-D", "--defined-only", str(library)).splitlines()]
    faults += [f"exports {name}" for name in exported if not name.startswith(("peal", "PEAL", "_ZN4peal"))]
    if not re.search(r"\.nv_fatbin\s", output("readelf", "-SW", str(library))):
        faults.append("holds no device code")
    for fault in faults:
        print(f"{library.name}: {fault}")
    print(f"{library.name}: {size} bytes, {len(exported)} symbols, needs {', '.join(needed)}; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
