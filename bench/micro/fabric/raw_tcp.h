// Two spinning ends of one TCP connection: what a network over TCP is measured against.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace peal::bench {

class RawTcp {
 public:
  // Rank 0 listens at `address`:`port`, rank 1 connects. `congestion`: an algorithm's name, or empty for the
  // system's.
  RawTcp(int rank, const std::string& address, int port, const std::string& congestion);
  ~RawTcp();
  RawTcp(const RawTcp&) = delete;
  RawTcp& operator=(const RawTcp&) = delete;

  // Sends and receives at once, through one buffer each of a slot's size.
  void exchange(size_t sendBytes, size_t receiveBytes);

 private:
  int socket_ = -1;
  std::vector<char> out_;
  std::vector<char> in_;
};

}  // namespace peal::bench
