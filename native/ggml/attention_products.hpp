// Products of matrices of 32-bit numbers, for native/ggml/attention.cpp alone.
#pragma once

#include "simd-mappings.h"

#include <cstdint>

// Compiled for one set of instructions each time: a linker must not choose one of several.
namespace {

constexpr int64_t LANES = GGML_F32_EPR;

// B of 32-bit numbers, N to a row.
struct Wide {
    const float * numbers;
    int64_t n;

    GGML_F32_VEC load(int64_t row, int64_t column) const { return GGML_F32_VEC_LOAD(numbers + row * n + column); }
    float at(int64_t row, int64_t column) const { return numbers[row * n + column]; }
};

// C[M x N] += A[M x K] * B[K x N], for the columns of some vectors; A has `k_stride` numbers to a row.
template <int ROWS, int VECTORS, class Matrix>
void multiply_columns(float * c, const float * a, const Matrix & b, int64_t column, int64_t k, int64_t k_stride,
                      int64_t n) {
    GGML_F32_VEC sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < VECTORS; ++j) {
            sums[i][j] = GGML_F32_VEC_LOAD(c + i * n + column + j * LANES);
        }
    }
    for (int64_t step = 0; step < k; ++step) {
        GGML_F32_VEC columns[VECTORS];
        for (int j = 0; j < VECTORS; ++j) {
            columns[j] = b.load(step, column + j * LANES);
        }
        for (int i = 0; i < ROWS; ++i) {
            const GGML_F32_VEC factor = GGML_F32_VEC_SET1(a[i * k_stride + step]);
            for (int j = 0; j < VECTORS; ++j) {
                sums[i][j] = GGML_F32_VEC_FMA(sums[i][j], columns[j], factor);
            }
        }
    }
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < VECTORS; ++j) {
            GGML_F32_VEC_STORE(c + i * n + column + j * LANES, sums[i][j]);
        }
    }
}

// The sums of few rows alone would wait for each other: more columns at once then.
template <int ROWS, class Matrix>
void multiply_rows(float * c, const float * a, const Matrix & b, int64_t k, int64_t k_stride, int64_t n) {
    constexpr int WIDE = ROWS == 1 ? 8 : ROWS == 2 ? 4 : 2;
    int64_t column = 0;
    for (; column + WIDE * LANES <= n; column += WIDE * LANES) {
        multiply_columns<ROWS, WIDE>(c, a, b, column, k, k_stride, n);
    }
    for (; column + LANES <= n; column += LANES) {
        multiply_columns<ROWS, 1>(c, a, b, column, k, k_stride, n);
    }
    // A column is always one of these or none of them, in whatever rows.
    for (; column < n; ++column) {
        for (int i = 0; i < ROWS; ++i) {
            float sum = c[i * n + column];
            for (int64_t step = 0; step < k; ++step) {
                sum += a[i * k_stride + step] * b.at(step, column);
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

template <class Matrix>
void multiply(float * c, const float * a, const Matrix & b, int64_t m, int64_t k, int64_t k_stride, int64_t n) {
    for (; m >= ROWS_AT_ONCE; m -= ROWS_AT_ONCE, a += ROWS_AT_ONCE * k_stride, c += ROWS_AT_ONCE * n) {
        multiply_rows<ROWS_AT_ONCE>(c, a, b, k, k_stride, n);
    }
    switch (m) {
        case 5: return multiply_rows<5>(c, a, b, k, k_stride, n);
        case 4: return multiply_rows<4>(c, a, b, k, k_stride, n);
        case 3: return multiply_rows<3>(c, a, b, k, k_stride, n);
        case 2: return multiply_rows<2>(c, a, b, k, k_stride, n);
        case 1: return multiply_rows<1>(c, a, b, k, k_stride, n);
        default: return;
    }
}

} // namespace
