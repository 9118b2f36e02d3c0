// Included before ggml's AMX kernels (cmake/llama_cpp.cmake). GCC's _tile_loadconfig, up to GCC 14 at least, tells the
// compiler that it reads 8 of the 64 bytes: the stores to the others are optimised away, the processor refuses what the
// stack holds instead, and the first step of a model ends the process with a segmentation fault.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)

#include <immintrin.h>

static inline void pyllmcancel_tile_loadconfig(const void * config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*static_cast<const char (*)[64]>(config)));
}
#define _tile_loadconfig pyllmcancel_tile_loadconfig

#endif
