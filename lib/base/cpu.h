// What the processor can do, and how many processors this process may use.
#pragma once

namespace peal {

// Instruction sets that the reduction loops and AdamW are compiled for, in rising order.
enum class Isa { Baseline, Avx2, Avx512 };

// AVX2 means AVX2 + FMA + F16C; AVX-512 means F + BW + DQ + VL. Capped by PEAL_ISA.
Isa bestIsa();
const char* isaName(Isa isa);

// Processors in this process's allowed set (sched_getaffinity), at least 1.
int allowedCpus();

}  // namespace peal
