// What an engine has allocated, for tests that hold it against the planner.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "peal/zero.hpp"

namespace peal::zero::test {

struct Arenas {
  uint64_t modelStates = 0;
  std::map<std::string, uint64_t> bytes;  // by name
};

// Each arena is as large as the engine planned it.
inline Arenas plannedArenas(const Engine& engine, int stage) {
  Arenas arenas;
  for (const pealZeroArena_t& arena : engine.memory()) {
    EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name << ", stage " << stage;
    arenas.modelStates += arena.kind == pealZeroModelState ? arena.bytes : 0;
    arenas.bytes[arena.name] = arena.bytes;
  }
  return arenas;
}

}  // namespace peal::zero::test
