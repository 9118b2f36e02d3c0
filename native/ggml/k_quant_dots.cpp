// Dot products of a row of K-quants with a row of activations (Q8_K). They take the place of ggml's (cmake/llama_cpp.cmake).
//
// ggml computes few rows of activations with a dot product each, and eight or more in tiles (tiled/tiled-kernel.cpp). The
// two round differently, so that a token's logits would depend on how many tokens are computed with it. Here a dot product
// has the arithmetic of a tile, step by step:
//
//   - the sums of a superblock, of products and of minima, are integers, and exact;
//   - sum of products times the weights' scale, less the sum of minima times theirs;
//   - times the activations' scale, added to the superblocks before.
//
// Four superblocks at a time share the additions across lanes. Q2_K and Q3_K are left as they are: they became 6 % slower.

#include "ggml-cpu-impl.h"
#include "ggml.h"
#include "quants.h"
#include "simd-mappings.h"

#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#if (defined(__x86_64__) || defined(__i386__) || defined(_M_IX86) || defined(_M_X64)) && !defined(GGML_CPU_GENERIC)

// ggml's own, renamed: for processors without AVX2. Without AVX there are no tiles, so that its sums have one order.
#define OWN_DOT(name)                                                                                                  \
    extern "C" void ggml_own_##name(int n, float * s, size_t bs, const void * x, size_t bx, const void * y, size_t by, \
                                    int rows)

OWN_DOT(vec_dot_q4_K_q8_K);
OWN_DOT(vec_dot_q5_K_q8_K);
OWN_DOT(vec_dot_q6_K_q8_K);
OWN_DOT(vec_dot_iq4_xs_q8_K);

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

namespace {

// The sums of a superblock: each is the sum of its lanes.
struct Lanes {
    __m256i products;
    __m256i minima;
};

__m256i load(const void * bytes) { return _mm256_loadu_si256(static_cast<const __m256i *>(bytes)); }

// The bits of MASK, moved by SHIFT: to the left, or if it is negative, to the right.
template <int SHIFT, int MASK> __m256i bits(__m256i bytes) {
    const __m256i moved =
        SHIFT >= 0 ? _mm256_slli_epi16(bytes, SHIFT < 0 ? 0 : SHIFT) : _mm256_srli_epi16(bytes, SHIFT < 0 ? -SHIFT : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8(MASK));
}

// A shuffle that repeats a lane's 16-bit element INDEX.
template <int INDEX> __m256i repeated(__m256i elements) {
    return _mm256_shuffle_epi8(elements, _mm256_set1_epi16(2 * INDEX | (2 * INDEX + 1) << 8));
}

// 32 products, which are added in pairs, multiplied by a scale, and added in pairs again.
__m256i multiply(__m256i weights, const int8_t * activations, __m256i scales) {
    return _mm256_madd_epi16(scales, _mm256_maddubs_epi16(weights, load(activations)));
}

// Sixteen scales as 16-bit elements: of even sub-blocks in the lower half, of odd ones in the upper.
__m256i even_and_odd(__m128i scales) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order));
}

// -- formats of sixteen sub-blocks -----------------------------------------------------------------------------------

template <int HALF> __m256i add_half(const block_q6_K & x, const int8_t * y, __m256i scales, __m256i sum) {
    const __m256i first = load(x.ql + 64 * HALF);
    const __m256i second = load(x.ql + 64 * HALF + 32);
    const __m256i high = load(x.qh + 32 * HALF);
    y += 128 * HALF;
    const __m256i weights[] = {
        _mm256_or_si256(bits<0, 15>(first), bits<4, 48>(high)),
        _mm256_or_si256(bits<0, 15>(second), bits<2, 48>(high)),
        _mm256_or_si256(bits<-4, 15>(first), bits<0, 48>(high)),
        _mm256_or_si256(bits<-4, 15>(second), bits<-2, 48>(high)),
    };
    const __m256i a = _mm256_add_epi32(multiply(weights[0], y, repeated<4 * HALF>(scales)),
                                       multiply(weights[1], y + 32, repeated<4 * HALF + 1>(scales)));
    const __m256i b = _mm256_add_epi32(multiply(weights[2], y + 64, repeated<4 * HALF + 2>(scales)),
                                       multiply(weights[3], y + 96, repeated<4 * HALF + 3>(scales)));
    return _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
}

template <class Block>
[[gnu::always_inline]] inline __m256i products(const Block & x, const block_q8_K & y, __m128i scales) {
    const __m256i ordered = even_and_odd(scales);
    return add_half<1>(x, y.qs, ordered, add_half<0>(x, y.qs, ordered, _mm256_setzero_si256()));
}

// Sums of activations times the scales: what weights that are stored with an offset have too much, in units of the offset.
__m256i offsets(const block_q8_K & y, __m128i scales) {
    return _mm256_madd_epi16(load(y.bsums), _mm256_cvtepi8_epi16(scales));
}

[[gnu::always_inline]] inline Lanes sums(const block_q6_K & x, const block_q8_K & y) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i *>(x.scales));
    return {_mm256_sub_epi32(products(x, y, scales), _mm256_slli_epi32(offsets(y, scales), 5)), __m256i{}};
}

// -- formats of eight sub-blocks -------------------------------------------------------------------------------------

template <int PAIR> __m256i low_weights(const block_q4_K & x) { return bits<0, 15>(load(x.qs + 32 * PAIR)); }

template <int PAIR> __m256i high_weights(const block_q4_K & x) { return bits<-4, 15>(load(x.qs + 32 * PAIR)); }

template <int PAIR> __m256i low_weights(const block_q5_K & x) {
    return _mm256_or_si256(bits<0, 15>(load(x.qs + 32 * PAIR)), bits<4 - 2 * PAIR, 16>(load(x.qh)));
}

template <int PAIR> __m256i high_weights(const block_q5_K & x) {
    return _mm256_or_si256(bits<-4, 15>(load(x.qs + 32 * PAIR)), bits<3 - 2 * PAIR, 16>(load(x.qh)));
}

template <int PAIR, class Block> __m256i pair(const Block & x, const int8_t * y, __m256i scales) {
    y += 64 * PAIR;
    return _mm256_add_epi32(multiply(low_weights<PAIR>(x), y, repeated<2 * PAIR>(scales)),
                            multiply(high_weights<PAIR>(x), y + 32, repeated<2 * PAIR + 1>(scales)));
}

// Eight scales, and eight minima, of 6 bits each in 12 bytes.
__m128i scales_and_minima(const uint8_t * packed) {
    uint32_t in[3];
    std::memcpy(in, packed, sizeof(in));
    const uint32_t scales = (in[2] & 0x0F0F0F0F) | ((in[0] >> 6 & 0x03030303) << 4);
    const uint32_t minima = (in[2] >> 4 & 0x0F0F0F0F) | ((in[1] >> 6 & 0x03030303) << 4);
    return _mm_setr_epi32(in[0] & 0x3F3F3F3F, scales, in[1] & 0x3F3F3F3F, minima);
}

template <class Block> [[gnu::always_inline]] inline Lanes sums_of_eight(const Block & x, const block_q8_K & y) {
    const __m256i both = _mm256_cvtepu8_epi16(scales_and_minima(x.scales));
    const __m256i scales = _mm256_permute4x64_epi64(both, 0x44);
    const __m256i activations = load(y.bsums);
    const __m128i pairs = _mm_hadd_epi16(_mm256_castsi256_si128(activations), _mm256_extracti128_si256(activations, 1));
    const __m128i minima = _mm_madd_epi16(_mm256_extracti128_si256(both, 1), pairs);
    const __m256i a = _mm256_add_epi32(pair<0>(x, y.qs, scales), pair<1>(x, y.qs, scales));
    const __m256i b = _mm256_add_epi32(pair<2>(x, y.qs, scales), pair<3>(x, y.qs, scales));
    return {_mm256_add_epi32(a, b), _mm256_inserti128_si256(__m256i{}, minima, 0)};
}

[[gnu::always_inline]] inline Lanes sums(const block_q4_K & x, const block_q8_K & y) { return sums_of_eight(x, y); }

[[gnu::always_inline]] inline Lanes sums(const block_q5_K & x, const block_q8_K & y) { return sums_of_eight(x, y); }

// A product of signed bytes: maddubs takes its first operand as unsigned.
__m256i multiply_signed(__m256i weights, const int8_t * activations, int scale) {
    const __m256i sizes = _mm256_sign_epi8(weights, weights);
    const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(load(activations), weights));
    return _mm256_madd_epi16(_mm256_set1_epi16(static_cast<int16_t>(scale)), pairs);
}

[[gnu::always_inline]] inline Lanes sums(const block_iq4_xs & x, const block_q8_K & y) {
    const __m256i values =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kvalues_iq4nl)));
    __m256i sum = _mm256_setzero_si256();
    for (int block = 0; block < 8; ++block) {
        const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i *>(x.qs + 16 * block));
        const __m256i both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
        const __m256i weights = _mm256_shuffle_epi8(values, bits<0, 15>(both));
        const int scale = (x.scales_l[block / 2] >> 4 * (block % 2) & 15) | (x.scales_h >> 2 * block & 3) << 4;
        sum = _mm256_add_epi32(sum, multiply_signed(weights, y.qs + 32 * block, scale - 32));
    }
    return {sum, __m256i{}};
}

// -- rows ------------------------------------------------------------------------------------------------------------

// Element i is the sum of the lanes of vectors[i].
__m128i added_lanes(const __m256i (&vectors)[4]) {
    const __m256i quarters =
        _mm256_hadd_epi32(_mm256_hadd_epi32(vectors[0], vectors[1]), _mm256_hadd_epi32(vectors[2], vectors[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1));
}

// The sum so far, and a superblock. The tiles of AVX-512 say it so, and leave it to the compiler whether to fuse.
float added(float sum, float block, float scale) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
    return _mm_cvtss_f32(_mm_add_ps(_mm_set1_ps(sum), _mm_mul_ps(_mm_set1_ps(block), _mm_set1_ps(scale))));
#else
    return std::fma(block, scale, sum);
#endif
}

// Inlined: as calls, these took a fifth of the time.
template <int COUNT, bool HAS_MINIMA, class Block>
[[gnu::always_inline]] inline float add_superblocks(float sum, const Block * x, const block_q8_K * y) {
    __m256i products[4] = {};
    __m256i minima[4] = {};
    alignas(16) float scales[4] = {};
    alignas(16) float scales_of_minima[4] = {};
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) {
        const Lanes lanes = sums(x[i], y[i]);
        products[i] = lanes.products;
        minima[i] = lanes.minima;
        scales[i] = _cvtsh_ss(x[i].d);
        if constexpr (HAS_MINIMA) {
            scales_of_minima[i] = _cvtsh_ss(x[i].dmin);
        }
    }
    __m128 results = _mm_mul_ps(_mm_load_ps(scales), _mm_cvtepi32_ps(added_lanes(products)));
    if constexpr (HAS_MINIMA) {
        results = _mm_fnmadd_ps(_mm_load_ps(scales_of_minima), _mm_cvtepi32_ps(added_lanes(minima)), results);
    }
    alignas(16) float of_blocks[4];
    _mm_store_ps(of_blocks, results);
    for (int i = 0; i < COUNT; ++i) {
        sum = added(sum, of_blocks[i], y[i].d);
    }
    return sum;
}

template <bool HAS_MINIMA, class Block>
void dot(int n, float * result, const void * weights, const void * activations) {
    const auto * x = static_cast<const Block *>(weights);
    const auto * y = static_cast<const block_q8_K *>(activations);
    const int count = n / QK_K;
    float sum = 0.0F;
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        sum = add_superblocks<4, HAS_MINIMA>(sum, x + i, y + i);
    }
    for (; i < count; ++i) {
        sum = add_superblocks<1, HAS_MINIMA>(sum, x + i, y + i);
    }
    *result = sum;
}

} // namespace

#define DOT(format, HAS_MINIMA)                                                                                        \
    void ggml_vec_dot_##format##_q8_K(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int) { \
        dot<HAS_MINIMA, block_##format>(n, s, x, y);                                                                   \
    }

#else

#define DOT(format, HAS_MINIMA)                                                                                        \
    void ggml_vec_dot_##format##_q8_K(int n, float * s, size_t bs, const void * x, size_t bx, const void * y,          \
                                      size_t by, int rows) {                                                           \
        ggml_own_vec_dot_##format##_q8_K(n, s, bs, x, bx, y, by, rows);                                                \
    }

#endif

extern "C" {
DOT(q4_K, true)
DOT(q5_K, true)
DOT(q6_K, false)
DOT(iq4_xs, false)
}

#endif
