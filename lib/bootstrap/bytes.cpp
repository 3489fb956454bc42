#include "lib/bootstrap/bytes.h"

namespace peal {

// Not inline: g++ 12 takes the growth of a small vector for an overflow when it sees both at once.
void append(Bytes& to, ByteView bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

}  // namespace peal
