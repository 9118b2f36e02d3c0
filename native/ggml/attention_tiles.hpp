// Tiles and blocks of cells, and the sums of a row over them, for native/ggml/attention.cpp alone.
#pragma once

#include "common.h"
#include "ggml.h"
#include "ggml/attention_products.hpp"
#include "simd-mappings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

constexpr int64_t TILE = GGML_FA_TILE_KV; // cells
constexpr int64_t BLOCK = 8 * TILE; // cells
constexpr float NOTHING = -std::numeric_limits<float>::infinity();
constexpr ggml_fp16_t MASKED = 0xFC00; // minus infinity

// A tile's mask in which no cell is visible.
struct MaskedTile {
    ggml_fp16_t cells[TILE];
    constexpr MaskedTile() : cells() {
        for (ggml_fp16_t & cell : cells) {
            cell = MASKED;
        }
    }
};
constexpr MaskedTile MASKED_TILE;

// An online softmax: a row's largest score and its sum of weights. Its weighted values follow in memory.
struct Sums {
    float maximum;
    float sum;
};
constexpr int64_t SUMS = sizeof(Sums) / sizeof(float);

// The part of the work buffer that a thread needs, for `rows` rows. Each of its arrays begins at a cache line, because a
// vector that crosses the end of one costs two loads.
struct Scratch {
    static constexpr int64_t LINE = 64 / sizeof(float);

    float * keys; // DK x TILE
    float * values; // TILE x DV
    float * mask; // TILE
    float * queries; // rows x DK
    float * weights; // rows x TILE: scores, then weights
    float * block; // rows x DV: weighted sum of the block's values
    float * merged; // rows x (SUMS + DV)

    static constexpr int64_t whole_lines(int64_t n) { return (n + LINE - 1) / LINE * LINE; }

    static int64_t size(int64_t rows, int64_t dk, int64_t dv) {
        return whole_lines(TILE * dk) + whole_lines(TILE * dv) + whole_lines(TILE) + whole_lines(rows * dk) +
               whole_lines(rows * TILE) + whole_lines(rows * dv) + whole_lines(rows * (SUMS + dv));
    }

    // `begin` is the beginning of a cache line.
    Scratch(float * begin, int64_t rows, int64_t dk, int64_t dv) {
        keys = begin;
        values = keys + whole_lines(TILE * dk);
        mask = values + whole_lines(TILE * dv);
        queries = mask + whole_lines(TILE);
        weights = queries + whole_lines(rows * dk);
        block = weights + whole_lines(rows * TILE);
        merged = block + whole_lines(rows * dv);
    }
};

// One function for both ways in which blocks are merged: were it inlined, a compiler could round in two ways.
[[gnu::noinline]] void merge(float * into, const Sums & sums, const float * values, int64_t dv) {
    Sums & all = *reinterpret_cast<Sums *>(into);
    if (sums.sum == 0.0F) {
        return; // no cell of the block is visible
    }
    const float maximum = std::max(all.maximum, sums.maximum);
    const float old_share = expf(all.maximum - maximum);
    const float new_share = expf(sums.maximum - maximum);
    float * merged = into + SUMS;
    int64_t i = 0;
    for (; i + LANES <= dv; i += LANES) {
        const GGML_F32_VEC part = GGML_F32_VEC_MUL(GGML_F32_VEC_LOAD(values + i), GGML_F32_VEC_SET1(new_share));
        const GGML_F32_VEC sum = GGML_F32_VEC_FMA(part, GGML_F32_VEC_LOAD(merged + i), GGML_F32_VEC_SET1(old_share));
        GGML_F32_VEC_STORE(merged + i, sum);
    }
    for (; i < dv; ++i) {
        merged[i] = values[i] * new_share + merged[i] * old_share;
    }
    all = {maximum, all.sum * old_share + sums.sum * new_share};
}

} // namespace
