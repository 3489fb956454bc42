#!/usr/bin/env python3
"""Writes copies of the kernels' sources with seeded defects, each of which a program can switch on.

Called by the build. Takes the text of the real files, so the copies cannot rot: a row whose snippet no longer
stands exactly once in its file ends the build. All defects share one compilation: a mutated place asks
isMutant(number) (mutant.h).

    mutate.py PROJECT_FOLDER OUTPUT_FOLDER

writes OUTPUT_FOLDER/<path of each file>, and OUTPUT_FOLDER/mutants.txt: a line for each defect,
"number<TAB>file<TAB>what it is".

A row is (what the defect is, snippet, defect). Both are expressions, or both statements (they end with a
semicolon; an empty defect leaves the statement out). host/table.py has those of the host code.
"""
import sys
from pathlib import Path

CUDA = "lib/executor/cuda/"

TABLE = {
    # What a link is made of: the transport's device end.
    CUDA + "wait.cuh": [
        ("tail stored relaxed", "storeRelease(boxes.posts(), number)", "storeRelaxed(boxes.posts(), number)"),
        ("tail one message ahead", "storeRelease(boxes.posts(), number)", "storeRelease(boxes.posts(), number + 1)"),
        ("every fourth post lost", "storeRelease(boxes.posts(), number)",
         "number % 4 == 0 ? void() : storeRelease(boxes.posts(), number)"),
        ("tail loaded relaxed", "loadAcquire(boxes.arrivals()) >= number", "loadRelaxed(boxes.arrivals()) >= number"),
        ("wait for the message before", "loadAcquire(boxes.arrivals()) >= number",
         "loadAcquire(boxes.arrivals()) + 1 >= number"),
        ("credit loaded relaxed", "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number",
         "loadRelaxed(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number"),
        ("one credit too many", "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number",
         "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) + 1 >= number"),
        ("no wait for credits", "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number",
         "true"),
        ("one credit too few", "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number",
         "loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) > number"),
        ("writes to the wrong peer", "comm.outbox[peer]",
         "comm.outbox[(peer + 1) % comm.ranks == comm.rank ? peer : (peer + 1) % comm.ranks]"),
        ("a message keeps the address of the one before", "storeGlobal(to, address);", ""),
        ("a message keeps the length of the one before", "storeGlobal(to + 1, header.bytes());", ""),
        ("a message keeps the sequence of the one before", "storeGlobal(to + 3, header.word[1]);", ""),
        ("digests are not compared", "!expected.sameDigest(arrived)", "false"),
        ("lengths are not compared", "expected.bytes() != arrived.bytes()", "false"),
        ("payload looked for at the slot's start", "boxes.slot(boxes.inbox, number) + address",
         "boxes.slot(boxes.inbox, number)"),
        ("host's stop flag ignored", "loadRelaxed(&comm.board->stop) != 0", "false"),
        ("stopped peers ignored", "stopped == 0", "true"),
        ("deadline counted from each look", "beganNs == 0", "true"),
        ("peers not told of a fault", "storeRelease(comm.peerStopped[peer], origin);", ""),
        ("own blocks not told of a fault", "storeRelease(comm.stopped, origin);", ""),
        ("fault record never complete", "storeRelease(&fault.complete, 1);", ""),
        ("stop spread by who only reacts", "kind == FaultKind::Stopped", "false"),
        ("wrong culprit", "static_cast<int>(stopped) - 1", "static_cast<int>(stopped)"),
    ],
    CUDA + "view.h": [
        ("credits lie on the tail", "return tail(channel) + kLineBytes;", "return tail(channel);"),
        ("slots overlap the messages", "return tail(channel + 1) - 2 * static_cast<size_t>(slots) * lowSlotBytes -",
         None),
        ("no room for the payload's place", "return slotBytes - 16;", "return slotBytes;"),
    ],
    CUDA + "lines.cuh": [
        ("LL: second line's flags not checked",
         "low.flag0 == flag && low.flag1 == flag && high.flag0 == flag && high.flag1 == flag",
         "low.flag0 == flag && low.flag1 == flag"),
        ("LL: second halves' flags not checked",
         "low.flag0 == flag && low.flag1 == flag && high.flag0 == flag && high.flag1 == flag",
         "low.flag0 == flag && high.flag0 == flag"),
        ("LL: flags not checked", "low.flag0 == flag && low.flag1 == flag && high.flag0 == flag && high.flag1 == flag",
         "true"),
        ("header: second halves' flags not checked", "line.flag0 == flag && line.flag1 == flag", "line.flag0 == flag"),
        ("header: flags of the message before taken", "line.flag0 == flag && line.flag1 == flag",
         "line.flag0 + 2 >= flag && line.flag1 + 2 >= flag"),
        ("LL: lines one too far", "lines + base * 2 * sizeof(Flagged);\n    storeFlagged(to,",
         None),
        ("LL128: flags not checked", "holdsFlag() && mine.b != number", "false"),
        ("LL128: flag of the message before", "holdsFlag() ? number : b", "holdsFlag() ? number - 1 : b"),
        ("LL128: words of a unit changed", "inLine % 2 == 0 ? even : odd", "inLine % 2 != 0 ? even : odd"),
        ("LL: only one slot swept", "number % kSweepEvery < static_cast<uint64_t>(slots)", "number % kSweepEvery < 1"),
        ("unit's edge: ninth byte read into the wrong half", "(i < 8 ? low : high) |= value << (i % 8 * 8);",
         "(i < 9 ? low : high) |= value << (i % 8 * 8);"),
        ("unit's edge: ninth byte written from the wrong half", "i < 8 ? lowWord(unit) : highWord(unit)",
         "i < 9 ? lowWord(unit) : highWord(unit)"),
    ],
    CUDA + "device_port.cuh": [
        ("no barrier before data move", "failed_ = syncBlockOr(!termsCame_ || !prepare(s, plan));",
         "failed_ = !termsCame_ || !prepare(s, plan);"),
        ("sums made without a term that did not come", "failed_ = syncBlockOr(!termsCame_ || !prepare(s, plan));",
         "failed_ = syncBlockOr(!prepare(s, plan));"),
        ("no barrier after bulk data", "syncBlock();\n    } else {", None),
        ("no barrier after lines", "failed_ = syncBlockOr(!moveLines(s, plan));", "failed_ = !moveLines(s, plan);"),
        ("slots of all peers in the wrong order", "peer < rank() ? peer : peer - 1",
         "peer < rank() ? rank() - 1 - peer : peer - 1"),
        ("numbers of the wrong peers", "index < rank() ? index : index + 1", "index"),
        ("terms of the sum before stay", "terms_ = 0;", ""),
        ("own term without its factor", "rawTerm_ = terms_;", ""),
    ],
    CUDA + "device_port_links.cuh": [
        ("credit stored relaxed", "storeRelease(boxes(peer).releases(kProtocol), number);",
         "storeRelaxed(boxes(peer).releases(kProtocol), number);"),
        ("every second credit lost", "storeRelease(boxes(peer).releases(kProtocol), number);",
         "if (number % 2 != 0) storeRelease(boxes(peer).releases(kProtocol), number);"),
        ("one message too many released", "storeRelease(boxes(peer).releases(kProtocol), number);",
         "storeRelease(boxes(peer).releases(kProtocol), number + 1);"),
        ("received the message before", "const uint64_t number = state_.received[peer] + 1;", None),
        ("ends while peers read in place", "referencesOpen_ && !failed_", "false"),
        ("one-shot in place by reference",
         "s.to == kAll && args_.kind == pealStatAllReduce && args_.in == args_.out", "false"),
        ("reference to the buffer's start", "input ? inOffset : outOffset", "size_t{0}"),
        ("own value last, not in rank order", "s.from == kAll ? rank() : received", "received"),
        ("average without division", "s.finish == Finish::Yes && args_.op == pealAvg", "false"),
        ("own value sent without its factor", "s.own == Own::In && args_.preMultiply != 0",
         "s.own == Own::In && args_.preMultiply != 0 && s.keep == Keep::Yes"),
        ("terms not given back", "state_.held[peer] == 0", "true"),
        ("messages that are no terms given back", "state_.held[peer] == 0", "false"),
        ("nodes' members one place further", "table + 2 * ranks", "table + 2 * ranks + 1"),
        ("received counters start anew", "loadGlobal(&channel.links[peer].received[static_cast<int>(kProtocol)])",
         "uint64_t{0}"),
        ("sent counters start anew", "loadGlobal(&channel.links[peer].sent[static_cast<int>(kProtocol)])",
         "uint64_t{0}"),
        ("sequence not put into digests", "digest.sequence = static_cast<uint32_t>(sequence_);", ""),
        ("sequence not counted", "storeGlobal(&channel.sequence, sequence_ + 1);", ""),
        ("writes the slot after", "slotFor(link, number, plan.place)", "slotFor(link, number + 1, plan.place)"),
    ],
    CUDA + "device_port_move.cuh": [
        ("unit's edge: writes 16 bytes", "left < kUnitBytes ? left : kUnitBytes", "kUnitBytes"),
        ("last unit lost", "(plan.bytes + kUnitBytes - 1) / kUnitBytes", "plan.bytes / kUnitBytes"),
        ("more sources than are there", "source < first + kAtOnce && source < plan.sources", "source < plan.sources"),
        ("lines of the message before", "state_.received[peerOf(source)] + 1", "state_.received[peerOf(source)]"),
    ],
    CUDA + "collective.cuh": [
        ("channels leave rounds out", "gridBlocks() * args.chunkCount", "(gridBlocks() + 1) * args.chunkCount"),
        ("nothing sent for an empty array", "round.begin < longest || round.begin == 0", "round.begin < longest"),
    ],
    CUDA + "levels.cuh": [
        ("stages of a round too early", "first.begin + round * stride", "first.begin + (round + 1) * stride"),
        ("the last round of a channel left out", "(longest - first.begin - 1) / stride + 1",
         "(longest - first.begin - 1) / stride"),
    ],
    CUDA + "point_to_point.cu": [
        ("no barrier after a send's copy", "}\n    syncBlock();", None),
        ("no barrier after a receive's copy", "number), slice.bytes);\n    syncBlock();", None),
        ("credit stored relaxed", "storeRelease(boxes(lane).releases(kSimple), number)",
         "storeRelaxed(boxes(lane).releases(kSimple), number)"),
        ("every second credit lost", "storeRelease(boxes(lane).releases(kSimple), number)",
         "number % 2 == 0 ? void() : storeRelease(boxes(lane).releases(kSimple), number)"),
        ("one set of ready lanes for two passes", "pass ^= 1", "pass ^= 0"),
        ("a slice too many in a channel", "slicesOf(args_.transfers[first]) <= blockIndex()",
         "slicesOf(args_.transfers[first]) < blockIndex()"),
        ("last slice as long as the others", "left < sliceBytes_ ? left : sliceBytes_", "sliceBytes_"),
        ("ends while a peer reads in place", "number != 0 && !failed", "number != 0 && false"),
        ("a transfer left out", "enter(lane, after(current, lane))", "enter(lane, after(current + 1, lane))"),
        ("slices left out", "state_.slice[lane] += gridBlocks();", "state_.slice[lane] += gridBlocks() + 1;"),
        ("unequal transfers to itself accepted", "source.bytes != destination.bytes", "false"),
        ("sends counted as one", "++state_.messages[lane];", "state_.messages[lane] += sends(lane) ? 0 : 1;"),
        ("messages start anew", "loadGlobal(counterOf(link(lane), lane))", "uint64_t{0}"),
        ("sequence of the first transfer", "digest.sequence = state_.sequence[lane];", ""),
    ],
}

# Snippets that are neither an expression nor a statement: what is put in their place.
LONGER = {
    "boxes.slotOf(number)) + address": "boxes.slotOf(number)) + ({is} ? 0 : address)",
    "lines + base * 2 * sizeof(Flagged);\n    storeFlagged(to,":
        "lines + (base + ({is} ? 1 : 0)) * 2 * sizeof(Flagged);\n    storeFlagged(to,",
    "syncBlock();\n    } else {": "if (!{is}) {{ syncBlock(); }}\n    }} else {{",
    "const uint64_t number = state_.received[peer] + 1;":
        "const uint64_t number = state_.received[peer] + ({is} ? 0 : 1);",
    "}\n    syncBlock();": "}}\n    if (!{is}) {{ syncBlock(); }}",
    "moveBulk(alone, c);\n      syncBlock();": "moveBulk(alone, c);\n      if (!{is}) {{ syncBlock(); }}",
    "epilogue_(finished, c);\n    syncBlock();": "epilogue_(finished, c);\n    if (!{is}) {{ syncBlock(); }}",
    "if (view.skip) {\n    return;\n  }": "if (view.skip && !{is}) {{\n    return;\n  }}",
    "number), slice.bytes);\n    syncBlock();": "number), slice.bytes);\n    if (!{is}) {{ syncBlock(); }}",
    "return tail(channel + 1) - 2 * static_cast<size_t>(slots) * lowSlotBytes -":
        "return tail(channel + 1) - ({is} ? 192 : 0) - 2 * static_cast<size_t>(slots) * lowSlotBytes -",
}

def replacement(snippet, defects):
    """`snippet` with switches for all its defects: [(number, defect)]."""
    condition = "::peal::cuda::test::isMutant({})".format
    if snippet in LONGER:
        if len(defects) != 1:
            sys.exit(f"mutate.py: only one defect for such a snippet: {snippet!r}")
        return LONGER[snippet].format(**{"is": condition(defects[0][0])})
    if snippet.endswith(";"):
        chain = "".join(f"if ({condition(number)}) {{ {defect} }} else " for number, defect in defects)
        return f"{chain}{{ {snippet} }}"
    chain = "".join(f"{condition(number)} ? ({defect}) : " for number, defect in defects)
    return f"({chain}({snippet}))"


def mutate(text, file, rows):
    """text with the defects of `rows`, [(number, what, snippet, defect)], built in."""
    by_snippet = {}
    for number, _, snippet, defect in rows:
        by_snippet.setdefault(snippet, []).append((number, defect))
    places = []
    for snippet, defects in by_snippet.items():
        if text.count(snippet) != 1:
            sys.exit(f"mutate.py: {file} has {snippet!r} {text.count(snippet)} times, not once: update the table")
        start = text.index(snippet)
        places.append((start, start + len(snippet), replacement(snippet, defects)))
    places.sort()
    parts, at = [], 0
    for start, end, new in places:
        if start < at:
            sys.exit(f"mutate.py: snippets overlap in {file}: {text[start:end]!r}")
        parts += [text[at:start], new]
        at = end
    return "".join(parts + [text[at:]])


def write(tables, project, output):
    """The copies, and the listing. tables: {file: [(what, snippet, defect, more ...)]}."""
    number, listing = 0, []
    for file, table in tables.items():
        rows = []
        for what, snippet, defect, *more in table:
            number += 1
            rows.append((number, what, snippet, defect))
            listing.append("\t".join([str(number), Path(file).name, what, *more]) + "\n")
        text = mutate((project / file).read_text(encoding="utf-8"), file, rows)
        target = output / file
        target.parent.mkdir(parents=True, exist_ok=True)
        include = '#include "tests/cuda/mutants/mutant.h"\n'
        target.write_text(include + text, encoding="utf-8")
    (output / "mutants.txt").write_text("".join(listing), encoding="utf-8")


if __name__ == "__main__":
    write(TABLE, Path(sys.argv[1]), Path(sys.argv[2]))
