#include "tests/cuda/kernel_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "lib/executor/selection.h"
#include "lib/reduce/reduce.h"

namespace peal::cuda::test {
namespace {

using Bytes = std::vector<std::byte>;

Blocks blocksFor(const KernelRanks& ranks, const CollectiveCase& test) {
  return blocksOf(test.kind, test.algorithm, test.count, test.starts.empty() ? nullptr : test.starts.data(),
                  ranks.size());
}

// Which part of the array a rank's buffers hold.
Chunk inputOf(const CollectiveCase& test, const Blocks& blocks, int rank) {
  if (test.kind == pealStatAllGather) {
    return blocks.block(rank);
  }
  const bool none = test.kind == pealStatBroadcast && rank != test.root;
  return {0, none ? 0 : blocks.total};
}
Chunk outputOf(const CollectiveCase& test, const Blocks& blocks, int rank) {
  if (test.kind == pealStatReduceScatter) {
    return blocks.block(rank);
  }
  const bool none = test.kind == pealStatReduce && rank != test.root;
  return {0, none ? 0 : blocks.total};
}

bool knowsNodes(const CollectiveCase& test) {
  return test.algorithm == Algorithm::Hierarchical || test.algorithm == Algorithm::Tree;
}

bool isFloat(pealDataType_t type) { return type >= pealFloat16 && type != pealFloat64; }

// Values that round: sums of them differ with the order.
Bytes randomInput(pealDataType_t type, size_t count, std::mt19937_64& random) {
  const size_t width = elementBytes(type);
  Bytes data(count * width);
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = data.data() + i * width;
    const double value = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-62;
    if (isFloat(type)) {
      fromFloat(type, static_cast<float>(value), at);
    } else if (type == pealFloat64) {
      std::memcpy(at, &value, sizeof value);
    } else {
      const uint64_t bits = random();
      std::memcpy(at, &bits, width);
    }
  }
  return data;
}

uint64_t scalarFor(const CollectiveCase& test, int rank) {
  std::array<std::byte, 8> bytes{};
  if (isFloat(test.type)) {
    fromFloat(test.type, 0.75F + 0.5F * static_cast<float>(rank), bytes.data());
  } else if (test.type == pealFloat64) {
    const double value = 0.7 + rank;
    std::memcpy(bytes.data(), &value, sizeof value);
  } else {
    bytes[0] = static_cast<std::byte>(rank + 3);
  }
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data(), sizeof bits);
  return bits;
}

// destination = finish(sources[0] op ...), elements [chunk.offset, + count) of each.
void sum(const CollectiveCase& test, int ranks, Chunk chunk, const std::vector<const Bytes*>& sources,
         Bytes& destination, Finish finish) {
  const size_t width = elementBytes(test.type);
  std::vector<const void*> addresses;
  for (const Bytes* source : sources) {
    addresses.push_back(source->data() + chunk.offset * width);
  }
  ReduceOp op;
  op.kind = test.op;
  op.ranks = ranks;
  reduce(test.type, op,
         {.sources = addresses,
          .destinations = {destination.data() + chunk.offset * width, nullptr},
          .count = chunk.count,
          .finish = finish});
}

// ---- sums of algorithms that know nodes: hierarchical.h and tree.h say their order ----
class LevelSums {
 public:
  LevelSums(const CollectiveCase& test, const Grouping& nodes, const std::vector<Bytes>& inputs)
      : test_(test), nodes_(nodes), inputs_(inputs) {}

  // Of the block that `owner` sums up.
  Bytes scattered(int owner) const {
    std::vector<Bytes> terms;
    for (int node = 0; node < nodes_.nodes; ++node) {
      if (node == nodes_.node(owner)) {
        append(terms, inputsOf(node));
      } else {
        terms.push_back(sumOf(inputsOf(node), Finish::No));
      }
    }
    return sumOf(terms, Finish::Yes);
  }
  // At the root of a chain of nodes.
  Bytes chained() const {
    std::vector<Bytes> came;
    for (int place = nodes_.nodes - 1; place >= 0; --place) {
      std::vector<Bytes> terms = inputsOf(nodeAt(place));
      append(terms, came);
      came = {sumOf(terms, place == 0 ? Finish::Yes : Finish::No)};
    }
    return came[0];
  }
  Bytes ofTree(int place) const {
    std::vector<Bytes> terms = inputsOf(nodeAt(place));
    for (int bit = 1; bit < nodes_.nodes && (place & (2 * bit - 1)) == 0; bit *= 2) {
      if (place + bit < nodes_.nodes) {
        terms.push_back(ofTree(place + bit));
      }
    }
    return sumOf(terms, place == 0 ? Finish::Yes : Finish::No);
  }
  Bytes doubled() const {
    int power = 1;
    for (; power * 2 <= nodes_.nodes; power *= 2) {
    }
    std::vector<Bytes> values;
    for (int node = 0; node < power; ++node) {
      std::vector<Bytes> terms = inputsOf(node);
      if (node + power < nodes_.nodes) {
        terms.push_back(sumOf(inputsOf(node + power), Finish::No));
      }
      values.push_back(sumOf(terms, power == 1 ? Finish::Yes : Finish::No));
    }
    for (int count = power; count > 1; count /= 2) {
      for (int pair = 0; pair < count / 2; ++pair) {
        const auto low = static_cast<size_t>(2 * pair);
        values[static_cast<size_t>(pair)] =
            sumOf({values[low], values[low + 1]}, count == 2 ? Finish::Yes : Finish::No);
      }
    }
    return values[0];
  }

 private:
  static void append(std::vector<Bytes>& terms, const std::vector<Bytes>& more) {
    terms.insert(terms.end(), more.begin(), more.end());
  }
  int nodeAt(int place) const { return (nodes_.node(test_.root) + place) % nodes_.nodes; }
  std::vector<Bytes> inputsOf(int node) const {
    std::vector<Bytes> terms;
    for (int local = 0; local < nodes_.nodeSize(node); ++local) {
      terms.push_back(inputs_[static_cast<size_t>(nodes_.rank(node, local))]);
    }
    return terms;
  }
  Bytes sumOf(const std::vector<Bytes>& terms, Finish finish) const {
    Bytes result(terms[0].size());
    std::vector<const Bytes*> sources;
    for (const Bytes& term : terms) {
      sources.push_back(&term);
    }
    sum(test_, nodes_.ranks, {0, result.size() / elementBytes(test_.type)}, sources, result, finish);
    return result;
  }

  const CollectiveCase& test_;
  const Grouping& nodes_;
  const std::vector<Bytes>& inputs_;
};

Bytes reducedByLevels(const CollectiveCase& test, const Blocks& blocks, const Grouping& nodes,
                      const std::vector<Bytes>& inputs) {
  const LevelSums sums(test, nodes, inputs);
  if (test.kind == pealStatReduce) {
    return test.algorithm == Algorithm::Tree ? sums.ofTree(0) : sums.chained();
  }
  if (test.algorithm == Algorithm::Tree) {
    return sums.doubled();
  }
  Bytes result(inputs[0].size());
  const size_t width = elementBytes(test.type);
  for (int part = 0; part < blocks.parts; ++part) {
    const Chunk block = blocks.block(part);
    const Bytes whole = sums.scattered(part);
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(block.offset * width), block.count * width,
                result.begin() + static_cast<ptrdiff_t>(block.offset * width));
  }
  return result;
}

// The whole reduced array, each element summed in the order of the algorithm. inputs: multiplied already.
Bytes reduced(const CollectiveCase& test, const Blocks& blocks, const Grouping& nodes,
              const std::vector<Bytes>& inputs) {
  const int n = static_cast<int>(inputs.size());
  Bytes result(inputs[0].size());
  std::vector<const Bytes*> all;
  for (const Bytes& input : inputs) {
    all.push_back(&input);
  }
  if (knowsNodes(test) && n > 1) {
    return reducedByLevels(test, blocks, nodes, inputs);
  }
  if (test.algorithm != Algorithm::Ring || n == 1) {
    sum(test, n, {0, blocks.total}, all, result, Finish::Yes);
    return result;
  }
  // A ring rounds at every hop: from the rank after a block's owner around to the owner.
  for (int part = 0; part < blocks.parts; ++part) {
    const int owner = test.kind == pealStatReduce ? test.root : part;
    const Chunk block = blocks.block(part);
    Bytes partial = *all[static_cast<size_t>((owner + 1) % n)];
    for (int k = 2; k <= n; ++k) {
      sum(test, n, block, {&partial, all[static_cast<size_t>((owner + k) % n)]}, partial,
          k == n ? Finish::Yes : Finish::No);
    }
    const size_t width = elementBytes(test.type);
    std::copy_n(partial.begin() + static_cast<ptrdiff_t>(block.offset * width), block.count * width,
                result.begin() + static_cast<ptrdiff_t>(block.offset * width));
  }
  return result;
}

// What the whole array is at the end, given every rank's part of it.
Bytes expectedArray(const CollectiveCase& test, const Blocks& blocks, const Grouping& nodes,
                    std::vector<Bytes> inputs) {
  const size_t width = elementBytes(test.type);
  if (test.kind == pealStatBroadcast) {
    return inputs[static_cast<size_t>(test.root)];
  }
  if (test.kind == pealStatAllGather) {
    Bytes result;
    for (const Bytes& input : inputs) {
      result.insert(result.end(), input.begin(), input.end());
    }
    return result;
  }
  if (test.preMultiply) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      ReduceOp op;
      op.preMultiply = true;
      const uint64_t scalar = scalarFor(test, static_cast<int>(rank));
      std::memcpy(op.scalar.data(), &scalar, sizeof scalar);
      const void* source = inputs[rank].data();
      reduce(test.type, op,
             {.sources = {&source, 1},
              .rawSource = 0,
              .destinations = {inputs[rank].data(), nullptr},
              .count = inputs[rank].size() / width});
    }
  }
  return reduced(test, blocks, nodes, inputs);
}

}  // namespace

Buffers buffersFor(const KernelRanks& ranks, const CollectiveCase& test) {
  const Blocks blocks = blocksFor(ranks, test);
  const size_t width = elementBytes(test.type);
  Buffers buffers;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const size_t in = inputOf(test, blocks, rank).count, out = outputOf(test, blocks, rank).count;
    if (test.inPlace) {
      buffers.out.emplace_back(rank, std::max(in, out) * width, test.misalignment);
    } else {
      buffers.in.emplace_back(rank, in * width, test.misalignment);
      buffers.out.emplace_back(rank, out * width, test.misalignment);
    }
  }
  return buffers;
}

CollectiveArgs argsFor(const KernelRanks& ranks, const CollectiveCase& test, const Buffers& buffers,
                       int rank) {
  const Blocks blocks = blocksFor(ranks, test);
  const size_t width = elementBytes(test.type);
  const Chunk in = inputOf(test, blocks, rank), out = outputOf(test, blocks, rank);
  const auto addresses = [&](int of) {
    std::byte* whole = buffers.out[static_cast<size_t>(of)].device();
    if (!test.inPlace) {
      return std::pair(buffers.in[static_cast<size_t>(of)].device(), whole);
    }
    // The part that is the smaller one lies inside the other.
    return std::pair(test.kind == pealStatAllGather ? whole + blocks.start(of) * width : whole,
                     test.kind == pealStatReduceScatter ? whole + blocks.start(of) * width : whole);
  };
  CollectiveArgs args{};
  args.comm = ranks.view(rank);
  args.digest.count = test.count;
  args.digest.root = test.root;
  args.digest.collective = static_cast<uint8_t>(test.kind);
  args.digest.type = static_cast<uint8_t>(test.type);
  args.digest.op = static_cast<uint8_t>(test.op);
  args.digest.algorithm = static_cast<uint8_t>(test.algorithm);
  args.digest.protocol = static_cast<uint32_t>(test.protocol);
  args.kind = test.kind;
  args.algorithm = test.algorithm;
  args.ahead = test.ahead;
  args.root = test.root;
  args.op = test.op;
  args.preMultiply = test.preMultiply ? 1 : 0;
  args.scalarBits = scalarFor(test, rank);
  std::tie(args.in, args.out) = addresses(rank);
  args.inStart = in.offset;
  args.outStart = out.offset;
  args.total = blocks.total;
  args.parts = blocks.parts;
  args.hasStarts = blocks.starts != nullptr ? 1 : 0;
  std::copy(test.starts.begin(), test.starts.end(), args.starts);
  args.chunkCount = ranks.shape().payloadBytes(test.protocol) / width;
  if (test.chunkCount != 0) {
    args.chunkCount = std::min(args.chunkCount, test.chunkCount);
  }
  for (int peer = 0; peer < ranks.size() && test.references; ++peer) {
    if (peer != rank) {  // one address space: peers read where this rank does
      args.inAt[peer] = reinterpret_cast<uint64_t>(args.in);
      args.outAt[peer] = reinterpret_cast<uint64_t>(args.out);
    }
  }
  return args;
}

std::function<void()> kernelFor(const CollectiveCase& test, const CollectiveArgs& args) {
  const CollectiveKernel kernel =
      knowsNodes(test) ? levelsKernel() : collectiveKernelFor(test.kind, test.protocol);
  return [kernel, args] { kernel(args); };
}

std::string describe(const CollectiveCase& test) {
  static const char* const kKinds[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                       "reduce",     "send",           "recv",       "barrier"};
  static const char* const kAlgorithms[] = {"ring", "one-shot", "two-shot", "hierarchical", "tree"};
  return fmt::format("{} {} {} {} {}{} count {} root {}{}{}{} misalignment {} chunk {} ahead {}",
                     kKinds[test.kind], kAlgorithms[static_cast<int>(test.algorithm)],
                     protocolName(test.protocol), typeName(test.type), opName(test.op),
                     test.preMultiply ? " premultiplied" : "", test.count, test.root,
                     test.starts.empty() ? "" : " v-form", test.inPlace ? " in place" : "",
                     test.references ? " references" : "", test.misalignment, test.chunkCount, test.ahead);
}

std::string runCase(KernelRanks& ranks, const CollectiveCase& test) {
  const Blocks blocks = blocksFor(ranks, test);
  const size_t width = elementBytes(test.type);
  const Buffers buffers = buffersFor(ranks, test);
  std::mt19937_64 random(test.seed);
  std::vector<Bytes> inputs;
  std::vector<std::function<void()>> kernels;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Chunk in = inputOf(test, blocks, rank);
    inputs.push_back(randomInput(test.type, in.count, random));
    const Array& array =
        test.inPlace ? buffers.out[static_cast<size_t>(rank)] : buffers.in[static_cast<size_t>(rank)];
    const size_t at = test.inPlace && test.kind == pealStatAllGather ? in.offset * width : 0;
    if (!inputs.back().empty()) {
      std::memcpy(array.host() + at, inputs.back().data(), inputs.back().size());
    }
    kernels.push_back(kernelFor(test, argsFor(ranks, test, buffers, rank)));
  }
  const cudasim::RunResult result = ranks.run(kernels);
  if (std::string text = ranks.complaint(result); !text.empty()) {
    return text;
  }
  const Bytes expected =
      test.kind == pealStatBarrier ? Bytes{} : expectedArray(test, blocks, ranks.grouping(), inputs);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Chunk out = outputOf(test, blocks, rank);
    const Array& array = buffers.out[static_cast<size_t>(rank)];
    const size_t at = test.inPlace && test.kind == pealStatReduceScatter ? out.offset * width : 0;
    const std::byte* want = expected.data() + out.offset * width;
    const std::byte* got = array.host() + at;
    for (size_t i = 0; i < out.count * width; ++i) {
      if (want[i] != got[i]) {
        return fmt::format("rank {}: byte {} of the output (element {} of the array) is {:#04x}, not {:#04x}",
                           rank, i, out.offset + i / width, static_cast<int>(got[i]),
                           static_cast<int>(want[i]));
      }
    }
    if (!array.frontIntact() || (!test.inPlace && !buffers.in[static_cast<size_t>(rank)].frontIntact())) {
      return fmt::format("rank {}: bytes in front of a buffer were overwritten", rank);
    }
    if (!test.inPlace) {
      const Bytes& input = inputs[static_cast<size_t>(rank)];
      if (!input.empty() &&
          std::memcmp(buffers.in[static_cast<size_t>(rank)].host(), input.data(), input.size()) != 0) {
        return fmt::format("rank {}: the input was overwritten", rank);
      }
    }
  }
  return {};
}

}  // namespace peal::cuda::test
