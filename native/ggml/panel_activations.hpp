// Rows of activations, quantized to eight bits for products with panels: in blocks as long as the weights' own.

#pragma once

#include "ggml/panel_formats.hpp"

#include <immintrin.h>

#include <cstdint>

namespace panels {

// A block of 32 elements: `sum` is d times the sum of the codes, `offset` is OFFSET times their sum.
struct ActivationsOf32 {
    float d;
    float sum;
    int32_t offset;
    int8_t qs[32];
};

// A block of 256 elements, with the sums of its codes.
struct ActivationsOf256 {
    float d;
    int16_t sums_of_16[16];
    int16_t sums_of_32[8];
    int8_t qs[256];
};

// The largest magnitude of N elements.
template <int N> float largest(const float * x) {
    __m256 lanes = _mm256_setzero_ps();
    for (int i = 0; i < N; i += 8) {
        lanes = _mm256_max_ps(lanes, _mm256_andnot_ps(_mm256_set1_ps(-0.0F), _mm256_loadu_ps(x + i)));
    }
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Codes of 32 elements; returns the sum of the first sixteen in lane 0, and of the others in lane 4.
inline __m256i put_codes(int8_t * codes, const float * x, __m256 factor) {
    __m256i of_32[4];
    for (int i = 0; i < 4; ++i) {
        of_32[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
    }
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(of_32[0], of_32[1]), _mm256_packs_epi32(of_32[2], of_32[3]));
    const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes), ordered);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), ordered);
    __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sums = _mm256_hadd_epi32(sums, sums);
    return _mm256_hadd_epi32(sums, sums);
}

inline int32_t first_sum(__m256i sums) { return _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)); }

inline int32_t second_sum(__m256i sums) { return _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)); }

// Rounded to fp16, as in ggml's block_q8_1: that mostly hides last bits that attention varies with unified cells.
inline float as_half(float value) { return _cvtsh_ss(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)); }

// OFFSET: what is added to each of the weights' codes.
template <int OFFSET> void quantize(ActivationsOf32 & to, const float * x) {
    const float most = largest<32>(x);
    const __m256i sums = put_codes(to.qs, x, _mm256_set1_ps(most > 0.0F ? 127.0F / most : 0.0F));
    const int32_t sum = first_sum(sums) + second_sum(sums);
    to.d = as_half(most / 127.0F);
    to.sum = to.d * static_cast<float>(sum);
    to.offset = OFFSET * sum;
}

template <int OFFSET> void quantize(ActivationsOf256 & to, const float * x) {
    const float most = largest<256>(x);
    const __m256 factor = _mm256_set1_ps(most > 0.0F ? 127.0F / most : 0.0F);
    to.d = most / 127.0F;
    for (int i = 0; i < 8; ++i) {
        const __m256i sums = put_codes(to.qs + 32 * i, x + 32 * i, factor);
        to.sums_of_16[2 * i] = static_cast<int16_t>(first_sum(sums));
        to.sums_of_16[2 * i + 1] = static_cast<int16_t>(second_sum(sums));
        to.sums_of_32[i] = static_cast<int16_t>(first_sum(sums) + second_sum(sums));
    }
}

} // namespace panels
