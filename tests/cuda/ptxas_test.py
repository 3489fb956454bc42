#!/usr/bin/env python3
"""What ptxas said of the library's kernels (OBJECT.ptxas, written by cmake/nvcc-report) is fit to run.

    ptxas_test.py ARCHITECTURES OBJECT ...    ARCHITECTURES: as in 80,90,100

No function spills registers, one block of the kernel's most threads fits a multiprocessor, and every kernel is there for every
architecture. `ptxas_test.py --self-test` checks that the reader finds such faults.
"""
import re
import sys
from pathlib import Path

KERNELS_H = Path(__file__).resolve().parents[2] / "lib/executor/cuda/kernels.h"
# The largest block of a kernel, by a part of its name, as a constant of KERNELS_H; the first that fits.
BLOCKS = (("reduceAdamwGather", "kMostFusedThreads"), ("levels", "kMostLevelsThreads"), ("", "kMostThreads"))
REGISTERS = 65536  # of a multiprocessor, all architectures since sm_30
SHARED_BYTES = 48 * 1024  # of a block, without asking for more

ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
FUNCTION = re.compile(r"Function properties for (\S+)")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def mostThreads(kernel):
    constant = next(name for part, name in BLOCKS if part in kernel)
    return int(re.search(rf"\b{constant} = (\d+);", KERNELS_H.read_text(encoding="utf-8"))[1])


def read(text, origin):
    """({(kernel, architecture)}, faults) of one report."""
    kernels, faults = set(), []
    where, function = origin, ""
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            kernels.add((entry[1], entry[2]))
            threads = mostThreads(entry[1])
            where = f"{origin}: {entry[1]}, sm_{entry[2]}"
        if named := FUNCTION.search(line):
            function = named[1]
        if spills := SPILLS.search(line):
            if int(spills[1]) or int(spills[2]):
                faults.append(f"{where}: {function} spills: {spills[0]}")
        if used := USED.search(line):
            registers = -(-int(used[1]) // 8) * 8  # allocated by eights
            if registers * threads > REGISTERS:
                faults.append(f"{where}: {used[1]} registers: a block of {threads} threads has at most "
                              f"{REGISTERS // threads} each")
            shared = SHARED.search(line)
            if shared and int(shared[1]) > SHARED_BYTES:
                faults.append(f"{where}: {shared[1]} bytes of shared memory: a block has {SHARED_BYTES}")
    return kernels, faults


def check(architectures, reports):
    """Faults of all reports, (origin, text) each, and the number of kernels."""
    faults, total = [], set()
    for origin, text in reports:
        kernels, found = read(text, origin)
        faults += found
        if not kernels:
            faults.append(f"{origin}: no kernels in it")
        for name in {kernel for kernel, _ in kernels}:
            missing = set(architectures) - {architecture for kernel, architecture in kernels if kernel == name}
            if missing:
                faults.append(f"{origin}: {name} was not compiled for sm_{', sm_'.join(sorted(missing))}")
        total |= {kernel for kernel, _ in kernels}
    return faults, len(total)


def selfTest():
    good = ("ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
            "ptxas info    : Function properties for k\n"
            "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 128 registers, used 1 barriers, 608 bytes smem\n")
    bad = {"spill stores": good.replace("0 bytes spill stores", "4 bytes spill stores"),
           "spill loads": good.replace("0 bytes spill loads", "12 bytes spill loads"),
           "registers": good.replace("Used 128", "Used 129"),
           "shared": good.replace("608 bytes smem", "50000 bytes smem"),
           "architecture": good.replace("sm_80", "sm_90"),
           "kernels": ""}
    failed = [name for name, text in bad.items() if not check(["80"], [(name, text)])[0]]
    if check(["80"], [("good", good)]) != ([], 1):
        failed.append("good")
    print(f"self-test: {len(bad) + 1} reports, judged wrongly: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return selfTest()
    architectures = sys.argv[1].split(",")
    files = [Path(name + ".ptxas") for name in sys.argv[2:] if name.endswith(".cu.o")]
    faults = [f"{file} is missing: built without cmake/nvcc-report?" for file in files if not file.is_file()]
    reports = [(file.name.removesuffix(".o.ptxas"), file.read_text(encoding="utf-8"))
               for file in files if file.is_file()]
    found, kernels = check(architectures, reports)
    faults += found
    if not files:
        faults.append("no objects of CUDA were named")
    for fault in faults:
        print(fault)
    print(f"{len(files)} objects, {kernels} kernels for {len(architectures)} architectures, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
