// Products of matrices of 32-bit numbers, for native/ggml/attention.cpp alone.
#pragma once

#include "simd-mappings.h"

#include <cstdint>

// Compiled for one set of instructions each time: a linker must not choose one of several.
namespace {

constexpr int64_t LANES = GGML_F32_EPR;

// C[M x N] += A[M x K] * B[K x N]
template <int ROWS, int VECTORS>
void multiply_columns(float * c, const float * a, const float * b, int64_t k, int64_t n) {
    GGML_F32_VEC sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < VECTORS; ++j) {
            sums[i][j] = GGML_F32_VEC_LOAD(c + i * n + j * LANES);
        }
    }
    for (int64_t step = 0; step < k; ++step) {
        GGML_F32_VEC columns[VECTORS];
        for (int j = 0; j < VECTORS; ++j) {
            columns[j] = GGML_F32_VEC_LOAD(b + step * n + j * LANES);
        }
        for (int i = 0; i < ROWS; ++i) {
            const GGML_F32_VEC factor = GGML_F32_VEC_SET1(a[i * k + step]);
            for (int j = 0; j < VECTORS; ++j) {
                sums[i][j] = GGML_F32_VEC_FMA(sums[i][j], columns[j], factor);
            }
        }
    }
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < VECTORS; ++j) {
            GGML_F32_VEC_STORE(c + i * n + j * LANES, sums[i][j]);
        }
    }
}

// The sums of few rows alone would wait for each other: more columns at once then.
template <int ROWS> void multiply_rows(float * c, const float * a, const float * b, int64_t k, int64_t n) {
    constexpr int WIDE = ROWS == 1 ? 8 : ROWS == 2 ? 4 : 2;
    int64_t column = 0;
    for (; column + WIDE * LANES <= n; column += WIDE * LANES) {
        multiply_columns<ROWS, WIDE>(c + column, a, b + column, k, n);
    }
    for (; column + LANES <= n; column += LANES) {
        multiply_columns<ROWS, 1>(c + column, a, b + column, k, n);
    }
    // A column is always one of these or none of them, in whatever rows.
    for (; column < n; ++column) {
        for (int i = 0; i < ROWS; ++i) {
            float sum = c[i * n + column];
            for (int64_t step = 0; step < k; ++step) {
                sum += a[i * k + step] * b[step * n + column];
            }
            c[i * n + column] = sum;
        }
    }
}

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int64_t ROWS_AT_ONCE = 6; // of 32 registers
#elif defined(__AVX2__) || defined(__AVX__)
constexpr int64_t ROWS_AT_ONCE = 6; // of 16: 12 sums, 2 columns, a factor
#else
constexpr int64_t ROWS_AT_ONCE = 3;
#endif

void multiply(float * c, const float * a, const float * b, int64_t m, int64_t k, int64_t n) {
    for (; m >= ROWS_AT_ONCE; m -= ROWS_AT_ONCE, a += ROWS_AT_ONCE * k, c += ROWS_AT_ONCE * n) {
        multiply_rows<ROWS_AT_ONCE>(c, a, b, k, n);
    }
    switch (m) {
        case 5: return multiply_rows<5>(c, a, b, k, n);
        case 4: return multiply_rows<4>(c, a, b, k, n);
        case 3: return multiply_rows<3>(c, a, b, k, n);
        case 2: return multiply_rows<2>(c, a, b, k, n);
        case 1: return multiply_rows<1>(c, a, b, k, n);
        default: return;
    }
}

} // namespace
