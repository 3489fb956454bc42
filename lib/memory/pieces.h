// Memory that was made by pieces (cuMemCreate, cuMemMap: PyTorch's expandable segments, for one) as other
// devices and processes get it: by handles that travel as file descriptors.
//
// Owns what each object holds. Used by transports/cuda_ipc/; functions of the driver are found at run time. A
// library without CUDA leaves this file out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/memory/descriptor.h"

namespace peal::cuda {

// The allocations behind a range of addresses, in order, each with a handle that keeps it alive.
class Pieces {
 public:
  struct Piece {
    unsigned long long handle = 0;
    size_t bytes = 0;  // that are mapped
  };

  Pieces() = default;
  Pieces(Pieces&& other) noexcept { swap(other); }
  Pieces& operator=(Pieces&& other) noexcept {
    swap(other);
    return *this;
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  ~Pieces();

  // Those that hold [data, data + bytes), at most `most`. An error says what the memory is instead.
  static Result<Pieces> behind(const void* data, size_t bytes, size_t most);
  // Those that another process has sent.
  static Result<Pieces> import(const std::vector<OwnedFd>& files, const std::vector<uint64_t>& bytes);

  const std::vector<Piece>& all() const { return all_; }
  size_t bytes() const;
  size_t offset() const { return offset_; }  // of `data` in the first one
  // One for each piece, for another process. An error where their maker did not allow it.
  Result<std::vector<OwnedFd>> files() const;

 private:
  void swap(Pieces& other) noexcept {
    std::swap(all_, other.all_);
    std::swap(offset_, other.offset_);
  }
  std::vector<Piece> all_;
  size_t offset_ = 0;
};

// Pieces mapped side by side for some devices of this process. Needs the handles no more once it is made.
// Unmapping does not wait for kernels.
class PieceMapping {
 public:
  PieceMapping() = default;
  PieceMapping(PieceMapping&& other) noexcept { swap(other); }
  PieceMapping& operator=(PieceMapping&& other) noexcept {
    swap(other);
    return *this;
  }
  PieceMapping(const PieceMapping&) = delete;
  PieceMapping& operator=(const PieceMapping&) = delete;
  ~PieceMapping();
  static Result<PieceMapping> make(const Pieces& pieces, const std::vector<int>& devices);
  std::byte* base() const { return base_; }

 private:
  void swap(PieceMapping& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
  }
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;            // reserved
  std::vector<size_t> mapped_;  // of the pieces mapped so far
};

}  // namespace peal::cuda
