// A user's program in C++: every rank gives its rank + 1, the sum comes out.
#include <algorithm>
#include <iostream>
#include <peal/peal.hpp>

int main() {
  try {
    peal::Communicator comm = peal::Communicator::fromLaunch();
    peal::Buffer<float> values(1000, static_cast<float>(comm.rank() + 1));
    comm.allReduce(values);
    if (std::ranges::count(values, values[0]) != 1000) {
      std::cerr << "the elements differ\n";
      return 1;
    }
    std::cout << "rank " << comm.rank() << " of " << comm.size() << ": sum " << values[0]
              << " in 1000 elements\n";
  } catch (const peal::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
