#include "tests/cudasim/runtime/pieces.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "tests/cudasim/core/memory.h"

namespace peal::cudasim {
namespace {

constexpr int kPieceGarbage = 0xa5;
constexpr const char* kPieceName = "cudasim-piece-";  // of the files; the device follows

bool fillFile(int fd, size_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return false;
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return false;
  }
  std::memset(data, kPieceGarbage, bytes);
  munmap(data, bytes);
  return true;
}

}  // namespace

Piece::~Piece() { close(fd_); }

std::shared_ptr<Piece> Piece::make(size_t bytes, int physicalDevice, bool exportable) {
  const int fd = memfd_create((kPieceName + std::to_string(physicalDevice)).c_str(), MFD_CLOEXEC);
  if (fd < 0) {
    return nullptr;
  }
  if (!fillFile(fd, bytes)) {
    close(fd);
    return nullptr;
  }
  return std::make_shared<Piece>(fd, bytes, physicalDevice, exportable);
}

std::shared_ptr<Piece> Piece::fromFile(int fd) {
  std::array<char, 128> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  struct stat status {};
  if (readlink(link.c_str(), target.data(), target.size() - 1) < 0 || fstat(fd, &status) != 0) {
    return nullptr;
  }
  int device = -1;
  const std::string format = std::string("/memfd:") + kPieceName + "%d";
  if (std::sscanf(target.data(), format.c_str(), &device) != 1) {
    return nullptr;
  }
  const int own = dup(fd);  // the caller's stays the caller's
  return own < 0 ? nullptr : std::make_shared<Piece>(own, static_cast<size_t>(status.st_size), device, true);
}

CUmemGenericAllocationHandle PieceTable::add(std::shared_ptr<Piece> piece) {
  handles[++lastHandle_] = std::move(piece);
  return lastHandle_;
}

bool PieceTable::isReserved(uintptr_t base, size_t bytes) const {
  auto after = reserved.upper_bound(base);
  if (after == reserved.begin()) {
    return false;
  }
  const auto& [start, length] = *std::prev(after);
  return base - start <= length && bytes <= length - (base - start);
}

// A page more, which nothing is ever mapped to.
uintptr_t PieceTable::reserve(size_t bytes) {
  void* const at = mmap(nullptr, bytes + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return 0;
  }
  const auto base = reinterpret_cast<uintptr_t>(toDevice(at));
  reserved[base] = bytes;
  return base;
}

void PieceTable::describe(std::vector<std::string>& lines) const {
  for (const auto& [handle, piece] : handles) {
    lines.push_back("a handle of cuMemCreate: " + std::to_string(piece->bytes()) + " bytes");
  }
  for (const auto& [base, bytes] : reserved) {
    lines.push_back("cuMemAddressReserve: " + std::to_string(bytes) + " bytes");
  }
}

// Addresses are never given out again, so that stale ones are found.
void PieceTable::removeAll() {
  handles.clear();
  reserved.clear();
  mappings.clear();
}

}  // namespace peal::cudasim
