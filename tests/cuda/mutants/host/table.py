#!/usr/bin/env python3
"""Seeded defects of what mutate.py's programs do not run: the transport's host code, the proxy, the order of
launches, AdamW, and the ZeRO engine's passes. Writes the mutated copies as mutate.py does.

    table.py PROJECT_FOLDER OUTPUT_FOLDER

A row is (what the defect is, snippet, defect, the test that notices it).
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutate import write  # noqa: E402  (beside this folder)

IPC = "transports/cuda_ipc/"
CUDA = "lib/executor/cuda/"
ZERO = "lib/zero/cuda/"
READS = "DeviceMemory.PeersReadRegisteredBuffersInPlace"
TORN = "DeviceMemory.LinesAreTornWhereOnePairIsNotOnNvlink"
KILLED = "DeviceMemory.AKilledPeerIsALossAndHoldsNothing"
BELIEVES = "Proxy.BelievesNothingThatAPeerSends"
ADAMW = "DeviceAdamw.EqualsTheHostsLoops"
SEGMENTS = "DeviceAdamw.DecaysBySegments"
FUSED = "FusedStep.EqualsTheSeparateSteps"
PASSES = "ZeroPasses.GiveTheBitsOfTheLoops"
SQUARES = "ZeroPasses.SquaresAreExactWhateverTheirMagnitudes"
WIDE_SQUARES = "ZeroPasses.WideSquaresAreExactWhateverTheirMagnitudes"
UPDATE = "ZeroUpdate.GivesTheBitsOfTheLoops"
FUSED_WEAK = "FusedStep.HoldsUnderStarvationAndDelayedStores"

TABLE = {
    IPC + "regions.cpp": [
        ("every address is the buffer's start", "address + static_cast<uint64_t>(data - region.data)", "address", READS),
        ("a range may go beyond the buffer", "bytes <= region.bytes - static_cast<size_t>(data - region.data)", "true",
         READS),
    ],
    IPC + "mapper.cpp": [
        ("the buffer's place in its allocation left out", "reinterpret_cast<uint64_t>(base) + note.offset",
         "reinterpret_cast<uint64_t>(base)", READS),
    ],
    IPC + "device_windows.cpp": [
        ("peer access not asked for", "can == 0", "false", "DeviceMemory.AllFallBackWhereOnePairHasNoPeerAccess"),
        ("every path keeps lines whole", "atomics != 0", "true", TORN),
        ("other ranks' lines do not count", "std::max(windows.path, other.path)", "vote.path", TORN),
    ],
    IPC + "watch.cpp": [
        ("a window is freed while peers may write it", "importer.ended || (importer.left && importer.outgoing.empty())",
         "true", "DeviceMemory.AWindowOutlivesItsOwnerAsLongAsAPeerMayWriteIt"),
        ("a peer's death is no loss", "lose(health.error(), control_->culpritRank());", "", KILLED),
        ("a death is another rank's", "lose(health.error(), control_->culpritRank());",
         "lose(health.error(), control_->culpritRank() + 1);", KILLED),
        ("notes that whoever leaves does not read are a fault", "Endpoint::kNobody", "Endpoint::kAnybody",
         "DeviceMemory.NotesOnTheirWayToWhoeverExitsAreNoFault"),
        ("a rank that has left is missed when its process ends", "control_->farewell(-1, \"\");", "",
         "DeviceMemory.AProcessMayEndAtOnceWhenItsRankHasLeft"),
    ],
    CUDA + "order.cpp": [
        ("a communicator's streams are not ordered", "PEAL_TRY((*mark)->awaitOn(state.stream));", "",
         "ApiCalls.OneCommunicatorIsOrderedAcrossStreams"),
        ("a graph's end goes unnoticed", "(*held)->destroyed.store(true, std::memory_order_release);", "",
         "ApiGraphs.ACommunicatorWithGraphsCannotBeDestroyed"),
    ],
    CUDA + "proxy.cpp": [
        ("links with too small slots accepted", "network->slotBytes() < sizeof(Header) + options.shape.slotBytes",
         "false", "Proxy.SaysThatTheNetworksSlotsAreTooSmall"),
        ("closing waits for nobody", "!flushed_.load(std::memory_order_acquire)", "false",
         "Proxy.CloseSaysThatAPeerHasNotTakenWhatWasSent"),
    ],
    CUDA + "proxy_traffic.cpp": [
        ("payloads put to the slot's start",
         "peer.base + inboxOffset() + shape.slot(channel, slot) + header.message.address",
         "peer.base + inboxOffset() + shape.slot(channel, slot)", "Proxy.NodesInsideAndProxiesBetween"),
        ("carried to the slot's start", "slots_->peerInboxes[static_cast<size_t>(peer.rank)] + payloadAt",
         "slots_->peerInboxes[static_cast<size_t>(peer.rank)] + slotAt",
         "ProxyGpuDirect.PayloadsGoFromOneGpuToTheOther"),
        ("a tail stored before the GPU has the payload", "slots_->awaitWrites()", "Result<void>()",
         "ProxyGpuDirect.GpusThatDoNotOrderWritesAreFlushed"),
        ("credit for what was not sent believed", "header.released > state.forwarded", "false", BELIEVES),
        ("a channel that is not there believed", "header.channel >= static_cast<uint32_t>(shape.channels)", "false",
         BELIEVES),
        ("a message out of turn believed", "header.number != state.received + 1", "false", BELIEVES),
    ],
    CUDA + "adamw.cuh": [
        ("decay of the segment before", "loadGlobal(&state.segments[middle].end) > index",
         "loadGlobal(&state.segments[middle].end) >= index", SEGMENTS),
        ("rounding by the place in the shard", "state.firstIndex + index", "index", SEGMENTS),
        ("last elements left out", "tail + thread", "tail + thread + 1", ADAMW),
        ("vectors where one array does not lie for them", "at(state.moment2 + range.begin + head) == 0", "true",
         "DeviceAdamw.TakesArraysThatAreNotAlignedTogether"),
        ("sums not kept one by one", "storeGlobal(range.kept + i, gradient);", "", FUSED),
        ("sums not kept by eights", "store16(range.kept + i, gradient);", "", FUSED),
    ],
    CUDA + "device_port_move.cuh": [
        ("update before the sum is whole", "moveBulk(alone, c);\n      syncBlock();", None, FUSED_WEAK),
        ("weights travel before all are made", "epilogue_(finished, c);\n    syncBlock();", None, FUSED_WEAK),
        ("the first receiver gets no weights", "plan.kept != nullptr ? 1 : 0", "0", FUSED),
        ("the sum kept where a slot is", "state_.destinations[0] = finished;", "", FUSED),
    ],
    CUDA + "collective_adamw.cu": [
        ("masters of the place in the array", "c.offset - shardStart", "c.offset", FUSED),
        ("a step that is to be skipped is made", "if (view.skip) {\n    return;\n  }", None,
         "FusedStep.SkipsTogetherWithoutAMessage"),
        ("steps are not counted", "finishAdamwStep(args.state, view);", "", FUSED),
        ("sums of every chunk kept at the first's place", "reduced + begin", "reduced", FUSED),
    ],
    ZERO + "eight.cuh": [
        ("the first element behind the eights left out", "division.tail() + gridThread()",
         "division.tail() + gridThread() + 1", PASSES),
    ],
    ZERO + "passes.cu": [
        ("eights where the sums do not lie for them", "isAlignedAt(sums, head)", "true", PASSES),
        ("fp32 values taken for bf16", "args.isWide != 0", "false", PASSES),
    ],
    ZERO + "squares.cu": [
        ("far exponents counted in a near unit", "above <= Bits<Value>::kUnitSpan", "true", SQUARES),
        ("subnormals without a unit", "field != 0 ? field : 1", "field", SQUARES),
        ("values beside the array counted", "first >= 0 && first + static_cast<int64_t>(kEight) <= count", "true",
         SQUARES),
        ("upper halves of fp32 squares lost", "(low >> 32) + high", "low >> 32", WIDE_SQUARES),
        ("what is above 2^64 lost", "rows.part[2][warp][least] += upper >> 32;", "", WIDE_SQUARES),
    ],
    ZERO + "update.cu": [
        ("rounding by the place in the stretch", "args.firstIndex + i", "i", UPDATE),
        ("remainders without their weights", "Masters::kReadsWeight ? loadGlobal(weight + i) : Weight{}", "Weight{}",
         UPDATE),
        ("eights where one array does not lie for them", "isAlignedAt(moment2, head)", "true", UPDATE),
        ("second moments by eights not kept", "storeEight(moment2 + i, v);", "", UPDATE),
    ],
}

if __name__ == "__main__":
    write(TABLE, Path(sys.argv[1]), Path(sys.argv[2]))
