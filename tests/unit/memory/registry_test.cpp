// The registry of shared memory: what is found, what is preferred, what an ended region leaves behind.
#include "lib/memory/registry.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "lib/memory/descriptor.h"
#include "tests/support/processes.h"

namespace peal {
namespace {

std::byte* allocate(size_t bytes) {
  const Result<void*> memory = allocateShared(bytes);
  EXPECT_TRUE(memory) << memory.error().message;
  return memory ? static_cast<std::byte*>(*memory) : nullptr;
}

void release(void* memory) {
  const Result<void> freed = freeShared(memory);
  EXPECT_TRUE(freed) << freed.error().message;
}

size_t openFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(Registry, AllocationIsZeroedWritableAndWholePages) {
  std::byte* memory = allocate(5000);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0U);
  for (size_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(memory[i], std::byte{0});
  }
  std::memset(memory, 0x5a, 5000);
  const std::optional<Region> region = findRegion(memory + 4999, 1);
  ASSERT_TRUE(region);
  EXPECT_EQ(region->base, memory);
  EXPECT_EQ(region->bytes, wholePages(5000));
  EXPECT_GE(region->fd, 0);
  EXPECT_TRUE(regionExists(region->id));
  release(memory);
  EXPECT_FALSE(regionExists(region->id));
}

TEST(Registry, FindsOnlyWhatLiesInsideOneRegion) {
  std::byte* memory = allocate(8192);
  EXPECT_TRUE(findRegion(memory, 8192));
  EXPECT_TRUE(findRegion(memory, 0));
  EXPECT_TRUE(findRegion(memory + 8191, 1));
  EXPECT_FALSE(findRegion(memory, 8193));
  EXPECT_FALSE(findRegion(memory + 8191, 2));
  EXPECT_FALSE(findRegion(memory - 1, 1));
  EXPECT_FALSE(findRegion(memory + 1, SIZE_MAX)) << "address + size overflows";
  release(memory);
  EXPECT_FALSE(findRegion(memory, 1)) << "a freed region was remembered";
}

TEST(Registry, IdsAreNeverReused) {
  std::byte* first = allocate(4096);
  const uint64_t id = findRegion(first, 1)->id;
  const uint64_t generation = registryGeneration();
  release(first);
  EXPECT_NE(registryGeneration(), generation);
  std::byte* second = allocate(4096);
  EXPECT_NE(findRegion(second, 1)->id, id);
  release(second);
}

TEST(Registry, OverlappingRangesAreFoundByTheOneThatReachesFarthest) {
  static std::byte memory[1000];
  const Result<uint64_t> wide = registerRange(memory, 900);
  const Result<uint64_t> narrow = registerRange(memory + 100, 50);
  const Result<uint64_t> late = registerRange(memory + 200, 800);
  ASSERT_TRUE(wide && narrow && late);
  EXPECT_EQ(findRegion(memory + 120, 500)->id, *wide);
  EXPECT_EQ(findRegion(memory + 210, 790)->id, *late);
  EXPECT_FALSE(findRegion(memory + 100, 900)) << "no single range holds it";
  EXPECT_EQ(findRegion(memory, 1)->fd, -1);
  EXPECT_TRUE(deregisterRange(*wide));
  EXPECT_EQ(findRegion(memory + 120, 20)->id, *narrow);
  EXPECT_FALSE(findRegion(memory + 120, 500));
  EXPECT_FALSE(deregisterRange(*wide)) << "given back twice";
  EXPECT_TRUE(deregisterRange(*narrow));
  EXPECT_TRUE(deregisterRange(*late));
  EXPECT_FALSE(findRegion(memory, 1));
}

TEST(Registry, MemoryFileIsPreferredToARange) {
  std::byte* memory = allocate(4096);
  const Result<uint64_t> range = registerRange(memory, 4096);
  ASSERT_TRUE(range);
  EXPECT_GE(findRegion(memory, 10)->fd, 0);
  EXPECT_TRUE(deregisterRange(*range));
  EXPECT_TRUE(findRegion(memory, 10));
  release(memory);
}

TEST(Registry, RefusalsSayWhat) {
  std::byte* memory = allocate(8192);
  int local = 0;
  EXPECT_NE(freeShared(&local).error().message.find("did not come from pealMemAlloc"), std::string::npos);
  EXPECT_NE(freeShared(memory + 4096).error().message.find("inside the allocation"), std::string::npos);
  EXPECT_FALSE(freeShared(nullptr));
  release(memory);
  EXPECT_FALSE(freeShared(memory)) << "freed twice";
  EXPECT_FALSE(allocateShared(0));
  EXPECT_FALSE(allocateShared(SIZE_MAX));
  EXPECT_FALSE(registerRange(nullptr, 1));
  EXPECT_FALSE(registerRange(&local, 0));
  EXPECT_FALSE(registerRange(&local, SIZE_MAX));
}

TEST(Registry, PeersMayReadAndWriteButNotTruncate) {
  std::byte* memory = allocate(4096);
  memory[7] = std::byte{42};
  const Region region = *findRegion(memory, 1);
  void* view = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(view)[7], std::byte{42});
  static_cast<std::byte*>(view)[8] = std::byte{43};
  EXPECT_EQ(memory[8], std::byte{43});
  EXPECT_NE(ftruncate(region.fd, 0), 0);
  EXPECT_TRUE(checkMemoryFile(region.fd, 4096));
  EXPECT_FALSE(checkMemoryFile(region.fd, 4097));
  release(memory);
  EXPECT_EQ(static_cast<std::byte*>(view)[7], std::byte{0}) << "the pages were not given back";
  munmap(view, 4096);
}

TEST(Registry, LeavesNoDescriptor) {
  const size_t before = openFiles();
  for (int i = 0; i < 100; ++i) {
    release(allocate(size_t{3} << 20));
  }
  EXPECT_EQ(openFiles(), before);
}

TEST(Registry, DescriptorsRunOutWithTheLimitAndTheRemedy) {
  test::expectAllSucceeded(test::runProcesses(1, test::kHangs, [](const test::Child&) {
    rlimit limit{64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<void*> all;
    while (all.size() < 100) {
      const Result<void*> memory = allocateShared(4096);
      if (!memory) {
        EXPECT_EQ(memory.error().code, pealSystemError);
        EXPECT_NE(memory.error().message.find("64 open files"), std::string::npos) << memory.error().message;
        EXPECT_NE(memory.error().message.find("ulimit -n"), std::string::npos) << memory.error().message;
        break;
      }
      all.push_back(*memory);
    }
    EXPECT_GT(all.size(), 10U);
    EXPECT_LT(all.size(), 64U);
    for (void* memory : all) {
      release(memory);
    }
    return 0;
  }));
}

TEST(Registry, ThreadsAllocateFindAndFreeAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = 4096 * static_cast<size_t>(1 + (i + t) % 5);
        std::byte* memory = allocate(bytes);
        const Result<uint64_t> range = registerRange(memory + 10, 100);
        ASSERT_TRUE(range);
        const std::optional<Region> found = findRegion(memory + bytes - 1, 1);
        ASSERT_TRUE(found);
        ASSERT_EQ(found->base, memory);
        ASSERT_TRUE(deregisterRange(*range));
        release(memory);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace peal
