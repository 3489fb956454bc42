// Memory by pieces, as cuMemCreate makes it: allocations with handles, and addresses that are reserved for
// mappings. The mappings themselves are ranges of the MemoryTable (RangeKind::Mapped).
//
// Owns memory files and reserved addresses. An allocation lives as long as a handle or a mapping of it, in
// any process: the file does that.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace peal::cudasim {

constexpr size_t kPieceBytes = size_t{2} << 20;  // the least granularity, as on GPUs

class Piece {
 public:
  Piece(int fd, size_t bytes, int physicalDevice, bool exportable)
      : fd_(fd), bytes_(bytes), physicalDevice_(physicalDevice), exportable_(exportable) {}
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece();
  int fd() const { return fd_; }
  size_t bytes() const { return bytes_; }
  int physicalDevice() const { return physicalDevice_; }
  bool exportable() const { return exportable_; }

  // Filled with garbage; nullptr: there is no memory for it.
  static std::shared_ptr<Piece> make(size_t bytes, int physicalDevice, bool exportable);
  // A file that make() made, here or in another process; nullptr: it is something else.
  static std::shared_ptr<Piece> fromFile(int fd);

 private:
  int fd_;
  size_t bytes_;
  int physicalDevice_;
  bool exportable_;
};

class PieceTable {
 public:
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Piece>> handles;
  std::map<uintptr_t, size_t> reserved;                  // addresses as the user sees them, and their bytes
  std::map<uintptr_t, std::shared_ptr<Piece>> mappings;  // by the base of their range

  CUmemGenericAllocationHandle add(std::shared_ptr<Piece> piece);
  // Whether they lie in one reservation.
  bool isReserved(uintptr_t base, size_t bytes) const;
  uintptr_t reserve(size_t bytes);  // 0: there are no addresses left
  void describe(std::vector<std::string>& lines) const;
  void removeAll();

 private:
  CUmemGenericAllocationHandle lastHandle_ = 0x700000000000;
};

}  // namespace peal::cudasim
