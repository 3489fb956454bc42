// The one entry of the harness: a bench's main() hands over what it measures.
#pragma once
#include "bench/harness/collective.h"
#include "bench/harness/types.h"

namespace peal::bench {

// Runs the whole program; the result is its exit code: 0; 1 for wrong data, a failed call or too little
// bandwidth; 2 for a wrong command line.
int benchMain(const Collective& collective, int argc, char** argv);

}  // namespace peal::bench
