// A tile's keys and values as 32-bit numbers, for native/ggml/attention.cpp alone.
#pragma once

#include "ggml-cpu.h"
#include "ggml.h"
#include "ggml/attention_tiles.hpp"
#include "simd-mappings.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

void widen(float * to, const char * from, ggml_type type, int64_t n) {
    if (type == GGML_TYPE_F16) {
        ggml_cpu_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t *>(from), to, n);
    } else {
        std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    }
}

#if defined(__AVX2__) && defined(__F16C__)
constexpr int64_t SQUARE = 8;

// Eight elements of each of eight cells, turned into eight cells of each of eight elements.
void turn_square(float * to, const char * from, std::size_t stride) {
    __m256 rows[8];
    for (int i = 0; i < 8; ++i) {
        rows[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * stride)));
    }
    __m256 pairs[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    __m256 fours[8];
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * TILE, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * TILE, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
}
#endif

// Ask for cells before they are read. Those of a head are apart in memory by those of the others: a processor that sees
// them read one by one does not foresee the next.
void prefetch(const char * cells, std::size_t stride, int64_t n_cells, std::size_t size) {
    for (int64_t number = 0; number < n_cells; ++number) {
        for (std::size_t at = 0; at < size; at += 64) {
            __builtin_prefetch(cells + static_cast<std::size_t>(number) * stride + at);
        }
    }
}

// Turned, so that the cells of an element are neighbours. What is behind the last cell is masked.
void read_keys(float * keys, const char * cells, std::size_t stride, ggml_type type, int64_t n_cells, int64_t dk) {
    if (n_cells < TILE) {
        std::memset(keys, 0, static_cast<std::size_t>(TILE * dk) * sizeof(float));
    }
    int64_t next = 0;
#if defined(__AVX2__) && defined(__F16C__)
    if (type == GGML_TYPE_F16 && dk % SQUARE == 0) {
        const int64_t in_squares = n_cells / SQUARE * SQUARE;
        for (int64_t element = 0; element < dk; element += SQUARE) {
            for (next = 0; next < in_squares; next += SQUARE) {
                const char * from = cells + static_cast<std::size_t>(next) * stride;
                turn_square(keys + element * TILE + next, from + element * 2, stride);
            }
        }
    }
#endif
    float row[64];
    for (; next < n_cells; ++next) {
        const char * from = cells + static_cast<std::size_t>(next) * stride;
        for (int64_t element = 0; element < dk; element += 64) {
            const int64_t n = std::min<int64_t>(64, dk - element);
            widen(row, from + static_cast<std::size_t>(element) * ggml_type_size(type), type, n);
            for (int64_t i = 0; i < n; ++i) {
                keys[(element + i) * TILE + next] = row[i];
            }
        }
    }
}

#if defined(__AVX2__) && defined(__F16C__)
// Cells of 16-bit numbers, as a matrix that is widened while it is multiplied.
struct Halves {
    const char * cells;
    std::size_t stride;

    GGML_F32_VEC load(int64_t row, int64_t column) const {
        const char * at = cells + static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(column) * 2;
#if defined(__AVX512F__)
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
#else
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
#endif
    }
    float at(int64_t row, int64_t column) const {
        float wide;
        widen(&wide, cells + static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(column) * 2,
              GGML_TYPE_F16, 1);
        return wide;
    }
};
#endif

void read_values(float * values, const char * cells, std::size_t stride, ggml_type type, int64_t n_cells, int64_t dv) {
    for (int64_t number = 0; number < n_cells; ++number) {
        widen(values + number * dv, cells + static_cast<std::size_t>(number) * stride, type, dv);
    }
    std::memset(values + n_cells * dv, 0, static_cast<std::size_t>((TILE - n_cells) * dv) * sizeof(float));
}

} // namespace
