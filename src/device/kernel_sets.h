#pragma once
// Kernels (*.isa.cpp) are compiled once per instruction set, each time into a namespace named after the set. A build
// can omit sets (CMake: TRAINER_ISA_SETS). The namespace of an omitted set is an alias of `plain`, and
// device::available() returns false for the set.

#ifdef TRAINER_WITHOUT_AVX2
#define TRAINER_IN_AVX2(...) namespace avx2 = plain;
#else
#define TRAINER_IN_AVX2(...) \
  namespace avx2 {           \
  __VA_ARGS__                \
  }
#endif

#ifdef TRAINER_WITHOUT_AVX512
#define TRAINER_IN_AVX512(...) namespace avx512 = plain;
#else
#define TRAINER_IN_AVX512(...) \
  namespace avx512 {           \
  __VA_ARGS__                  \
  }
#endif

/// Declares the same kernels in the namespace of every instruction set.
#define TRAINER_FOR_EACH_ISA(...) \
  namespace plain {               \
  __VA_ARGS__                     \
  }                               \
  TRAINER_IN_AVX2(__VA_ARGS__) TRAINER_IN_AVX512(__VA_ARGS__)

/// Evaluates to the table or function `name` for the instruction set.
#define TRAINER_KERNELS(isa, name) ::trainer::device::kernels_for(isa, plain::name, avx2::name, avx512::name)
