#!/usr/bin/env python3
"""Writes copies of the algorithms with one line changed each, for mutants_test.

Called by the build with the headers' folder and the file to write. Takes the text of the real headers, so
the copies cannot rot: a row whose line no longer stands exactly once in its function ends the build.

    mutate.py ALGORITHMS_FOLDER OUTPUT.cpp

A row is (function or struct whose text is changed, the line without indentation, the defect put in its
place, the algorithm that is then checked if it is not that function).
"""
import re
import sys
from pathlib import Path

RING = [
    ("ringNext", "return (port.rank() + 1) % port.size();", "return (port.rank() + 2) % port.size();",
     "ringAllReduce"),
    ("ringPrevious", "return (port.rank() + port.size() - 1) % port.size();",
     "return (port.rank() + port.size() - 2) % port.size();", "ringAllGather"),

    ("ringReduceScatter", "port.copyFinish(round.chunk(0));", "port.copy(round.chunk(0));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.send(next, round.chunk(own));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.send(previous, round.chunk(own - 1));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.copySend(next, round.chunk(own - 1));"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 1; k < n; ++k) {"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 3; k < n; ++k) {"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 2; k < n - 1; ++k) {"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(previous, next, round.chunk(own + k));"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvCopySend(previous, next, round.chunk(own - k));"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(next, previous, round.chunk(own - k));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recv(previous, round.chunk(own));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recvReduceCopy(previous, round.chunk(own - 1));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recvReduceCopySend(previous, next, round.chunk(own));"),

    ("ringAllGather", "port.copy(round.chunk(0));", "port.copyFinish(round.chunk(0));"),
    ("ringAllGather", "port.copySend(next, round.chunk(own));", "port.send(next, round.chunk(own));"),
    ("ringAllGather", "for (int k = 1; k < n - 1; ++k) {", "for (int k = 1; k < n; ++k) {"),
    ("ringAllGather", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvCopySend(previous, next, round.chunk(own - k - 1));"),
    ("ringAllGather", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(previous, next, round.chunk(own - k));"),
    ("ringAllGather", "port.recv(previous, round.chunk(own + 1));", "port.recv(previous, round.chunk(own));"),
    ("ringAllGather", "port.recv(previous, round.chunk(own + 1));",
     "port.recvReduceCopy(previous, round.chunk(own + 1));"),

    ("ringAllReduce", "port.send(next, round.chunk(own - 1));", "port.sendOut(next, round.chunk(own - 1));"),
    ("ringAllReduce", "port.send(next, round.chunk(own - 1));", "port.send(next, round.chunk(own + 1));"),
    ("ringAllReduce", "for (int k = 2; k < n; ++k) {", "for (int k = 2; k <= n; ++k) {"),
    ("ringAllReduce", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceCopySend(previous, next, round.chunk(own - k));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvReduceSend(previous, next, round.chunk(own));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvReduceCopy(previous, round.chunk(own));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvCopySend(previous, next, round.chunk(own));"),
    ("ringAllReduce", "for (int k = 1; k < n - 1; ++k) {", "for (int k = 2; k < n - 1; ++k) {"),
    ("ringAllReduce", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvReduceCopySend(previous, next, round.chunk(own - k));"),
    ("ringAllReduce", "port.recv(previous, round.chunk(own + 1));", "port.recv(previous, round.chunk(own + 2));"),

    ("ringBroadcast", "} else if (port.rank() == root) {", "} else if (port.rank() == 0) {"),
    ("ringBroadcast", "} else if (next == root) {", "} else if (previous == root) {"),
    ("ringBroadcast", "port.copySend(next, c);", "port.send(next, c);"),
    ("ringBroadcast", "port.recv(previous, c);", "port.recvCopySend(previous, next, c);"),
    ("ringBroadcast", "port.recvCopySend(previous, next, c);", "port.recv(previous, c);"),

    ("ringReduce", "} else if (port.rank() == root) {", "} else if (port.rank() == port.size() - 1) {"),
    ("ringReduce", "} else if (previous == root) {", "} else if (next == root) {"),
    ("ringReduce", "port.send(next, c);", "port.copySend(next, c);"),
    ("ringReduce", "port.recvReduceSend(previous, next, c);", "port.recvReduceCopySend(previous, next, c);"),
    ("ringReduce", "port.recvReduceCopy(previous, c);", "port.recv(previous, c);"),
]

DIRECT = [
    ("staggeredPeer", "return (port.rank() + k) % port.size();", "return (port.rank() + k + 1) % port.size();",
     "twoShotAllReduce"),
    ("staggeredPeer", "return (port.rank() + k) % port.size();", "return port.rank() + k;", "directAllGather"),

    ("oneShotAllReduce", "port.copyFinish(c);", "port.copy(c);"),
    ("oneShotAllReduce", "port.sendAll(c);", "port.sendOutAll(c);"),
    ("oneShotAllReduce", "port.sendAll(c);", "port.recvReduceAll(c);"),
    ("oneShotAllReduce", "port.recvReduceAll(c);", "port.copyFinish(c);"),

    ("directReduceScatter", "for (int k = 1; k < n; ++k) {", "for (int k = 2; k < n; ++k) {"),
    ("directReduceScatter", "for (int k = 1; k < n; ++k) {", "for (int k = 1; k < n - 1; ++k) {"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.send(peer, round.chunk(own));"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.copySend(peer, round.chunk(peer));"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.sendAll(round.chunk(peer));"),
    ("directReduceScatter", "port.recvReduceAll(round.chunk(own));", "port.recvReduceAll(round.chunk(own + 1));"),

    ("twoShotAllReduce", "directReduceScatter(port, round);", "port.copyFinish(round.chunk(own));"),
    ("twoShotAllReduce", "port.sendOutAll(round.chunk(own));", "port.sendAll(round.chunk(own));"),
    ("twoShotAllReduce", "for (int k = 1; k < n; ++k) {", "for (int k = 1; k < n - 1; ++k) {"),
    ("twoShotAllReduce", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(own));"),
    ("twoShotAllReduce", "port.recv(peer, round.chunk(peer));", "port.recvReduceCopy(peer, round.chunk(peer));"),

    ("directAllGather", "port.sendAll(round.chunk(own));", "port.sendOutAll(round.chunk(own));"),
    ("directAllGather", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(peer + 1));"),
    ("directAllGather", "port.copy(round.chunk(own));", "port.copyFinish(round.chunk(own));"),
    ("directAllGather", "port.copy(round.chunk(own));", "port.copy(round.chunk(own + 1));"),

    ("directBroadcast", "if (port.rank() != root) {", "if (port.rank() != 0) {"),
    ("directBroadcast", "port.recv(root, c);", "port.recvReduceCopy(root, c);"),
    ("directBroadcast", "port.sendAll(c);", "port.send(staggeredPeer(port, 1), c);"),
    ("directBroadcast", "port.copy(c);", "port.copyFinish(c);"),

    ("directReduce", "} else if (port.rank() == root) {", "} else if (port.rank() == 0) {"),
    ("directReduce", "port.recvReduceAll(c);", "port.recvReduceCopy(staggeredPeer(port, 1), c);"),
    ("directReduce", "port.send(root, c);", "port.copySend(root, c);"),
    ("directReduce", "port.send(root, c);", "port.sendAll(c);"),
]

CHUNK = [
    ("Blocks", "const size_t longer = total % n;", "const size_t longer = 0;", "ringAllReduce"),
    ("Blocks", "return total / n * k + (k < longer ? k : longer);", "return total / n * k + longer;",
     "ringReduceScatter"),
    ("Blocks", "return {start(k), start(k + 1) - start(k)};", "return {start(k), start(k + 1) - start(0)};",
     "directAllGather"),
    ("Round", "const size_t skip = begin < block.count ? begin : block.count;", "const size_t skip = begin;",
     "twoShotAllReduce"),
    ("Round", "const size_t left = block.count - skip;", "const size_t left = block.count;", "ringAllGather"),
    ("Round", "return {block.offset + skip, left < chunkCount ? left : chunkCount};",
     "return {block.offset, left < chunkCount ? left : chunkCount};", "ringBroadcast"),
    ("Round", "return {block.offset + skip, left < chunkCount ? left : chunkCount};",
     "return {block.offset + skip, chunkCount};", "oneShotAllReduce"),
]

ROOTED = {"ringBroadcast", "ringReduce", "directBroadcast", "directReduce"}
ALGORITHMS = ["ringAllReduce", "ringReduceScatter", "ringAllGather", "ringBroadcast", "ringReduce",
              "oneShotAllReduce", "twoShotAllReduce", "directReduceScatter", "directAllGather",
              "directBroadcast", "directReduce"]


def body(text, file):
    """What stands in namespace peal."""
    found = re.search(r"^namespace peal \{\n(.*)^\}  // namespace peal$", text, re.DOTALL | re.MULTILINE)
    if not found:
        sys.exit(f"mutate.py: {file} has no 'namespace peal {{ ... }}  // namespace peal'")
    return found[1]


def mutate(text, scope, line, defect):
    """text with `line` of the function or struct `scope` replaced; the line must stand there exactly once."""
    pattern = rf"^(?:PEAL_HD(?:_CALL)? \w+ {scope}\(|struct {scope} \{{).*?^\}};?$"
    scopes = list(re.finditer(pattern, text, re.DOTALL | re.MULTILINE))
    if len(scopes) != 1:
        sys.exit(f"mutate.py: found {len(scopes)} definitions of {scope}, not one: update the table")
    start, end = scopes[0].span()
    lines = text[start:end].split("\n")
    hits = [i for i, candidate in enumerate(lines) if candidate.strip() == line]
    if len(hits) != 1:
        sys.exit(f"mutate.py: {scope} has the line '{line}' {len(hits)} times, not once: update the table")
    lines[hits[0]] = lines[hits[0]].replace(line, defect)
    return text[:start] + "\n".join(lines) + text[end:]


def copy(name, text, algorithm):
    """A namespace with the text and a function that runs one of its algorithms on the recording port."""
    root = ", root" if algorithm in ROOTED else ""
    return f"""namespace peal::test::{name} {{
{text}
inline void run(record::RecordingPort& port, const ::peal::Blocks& blocks, size_t begin, size_t chunkCount,
                [[maybe_unused]] int root) {{
  {algorithm}(port, Round{{Blocks{{blocks.total, blocks.parts, blocks.starts}}, begin, chunkCount}}{root});
}}
}}  // namespace peal::test::{name}
"""


def row(name, algorithm, label):
    enumerator = algorithm[0].upper() + algorithm[1:]
    quoted = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'    {{"{quoted}", AlgorithmId::{enumerator}, &{name}::run}},\n'


def main():
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    ring, direct, chunk = (body((folder / f).read_text(encoding="utf-8"), f) for f in ("ring.h", "direct.h", "chunk.h"))
    # A copy of the cutting brings its own Blocks and Round, and shares Chunk with the recording port.
    chunk, removed = re.subn(r"^struct Chunk \{.*?^\};$", "", chunk, flags=re.DOTALL | re.MULTILINE)
    if removed != 1:
        sys.exit("mutate.py: chunk.h has no struct Chunk")
    parts, mutants, originals = [], "", ""
    for algorithm in ALGORITHMS:
        name = "original_" + algorithm
        parts.append(copy(name, chunk + ring + direct, algorithm))
        originals += row(name, algorithm, algorithm)
    number = 0
    for table, text, rest in ((RING, ring, ""), (DIRECT, direct, ""), (CHUNK, chunk, ring + direct)):
        for scope, line, defect, *checked in table:
            number += 1
            name, algorithm = f"m{number:02}", checked[0] if checked else scope
            parts.append(copy(name, mutate(text, scope, line, defect) + rest, algorithm))
            where = scope if scope == algorithm else f"{scope} (in {algorithm})"
            mutants += row(name, algorithm, f"{where}: {line} -> {defect}")
    for function, rows in (("originals", originals), ("mutants", mutants)):
        parts.append(f"std::span<const peal::test::Mutant> peal::test::{function}() {{\n"
                     f"  static const Mutant kList[] = {{\n{rows}  }};\n  return kList;\n}}\n")
    head = '// Written by mutate.py.\n#include "tests/algorithms/mutants/mutants.h"\n\n'
    output.write_text(head + "\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
