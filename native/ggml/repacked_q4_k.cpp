// A row of activations times repacked Q4_K: eight rows of weights lie interleaved. It takes the place of ggml's
// (cmake/llama_cpp.cmake).
//
// ggml multiplies four rows of activations at once, and what is left over one by one. The two round differently, so that a
// token's logits would depend on how many tokens are computed with it. Here one row has the arithmetic of four: after every
// pair of sub-blocks, its exact sum of products is multiplied by the scales of weights and activations, and added; sums of
// minima likewise, apart from them; at the end the latter are subtracted.

#include "ggml-cpu-impl.h"
#include "ggml.h"
#include "quants.h"
#include "simd-mappings.h"

#include "repack.h"

#include <cstdint>
#include <cstring>

#if (defined(__x86_64__) || defined(__i386__) || defined(_M_IX86) || defined(_M_X64)) && !defined(GGML_CPU_GENERIC)

// ggml's own, renamed: for processors without AVX2, on which Q4_K is not repacked.
extern "C" void ggml_own_gemv_q4_K_8x8_q8_K(int n, float * s, size_t bs, const void * x, const void * y, int rows,
                                            int columns);

#if defined(__AVX2__) && defined(__FMA__)

namespace {

constexpr int PAIRS = QK_K / 64; // of sub-blocks in a superblock

// The sums of eight rows. The order of rows in `products` is 0, 1, 4, 5, 2, 3, 6, 7: that of _mm256_hadd_epi32.
struct Sums {
    __m256 products = _mm256_setzero_ps();
    __m256 minima = _mm256_setzero_ps();
};

struct PackedScales {
    __m128i scales; // bytes, in the lower half and again in the upper
    __m128i minima;
};

__m256i load(const void * bytes) { return _mm256_loadu_si256(static_cast<const __m256i *>(bytes)); }

__m256i repeated_8_bytes(const int8_t * bytes) {
    int64_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return _mm256_set1_epi64x(value);
}

__m256 to_floats(const ggml_half * halves) {
#if defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves)));
#else
    float floats[8];
    for (int i = 0; i < 8; ++i) {
        floats[i] = GGML_CPU_FP16_TO_FP32(halves[i]);
    }
    return _mm256_loadu_ps(floats);
#endif
}

__m256 in_order_of_products(__m256 rows) {
    return _mm256_permutevar8x32_ps(rows, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
}

// The scales and minima of eight rows' sub-blocks, of 6 bits each in 12 bytes.
PackedScales unpack(const uint8_t * packed) {
    uint32_t in[3];
    std::memcpy(in, packed, sizeof(in));
    const uint64_t scales = (in[2] & 0x0F0F0F0F) | ((in[0] >> 6 & 0x03030303) << 4);
    const uint64_t minima = (in[2] >> 4 & 0x0F0F0F0F) | ((in[1] >> 6 & 0x03030303) << 4);
    return {_mm_set1_epi64x(static_cast<int64_t>(scales << 32 | (in[0] & 0x3F3F3F3F))),
            _mm_set1_epi64x(static_cast<int64_t>(minima << 32 | (in[1] & 0x3F3F3F3F)))};
}

// Sums of pairs of products in 16 bits, four elements of each of four rows: at most 4 * 2 * 15 * 128.
template <int SHIFT> __m256i multiply(const uint8_t * weights, const __m256i (&activations)[4]) {
    __m256i sum = _mm256_setzero_si256();
    for (int chunk = 0; chunk < 4; ++chunk) {
        const __m256i nibbles =
            _mm256_and_si256(_mm256_srli_epi16(load(weights + 64 * chunk), SHIFT), _mm256_set1_epi8(15));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(nibbles, activations[chunk]));
    }
    return sum;
}

// Two 32-bit elements of each of four rows.
__m256i scaled(const uint8_t * weights, const __m256i (&low)[4], const __m256i (&high)[4], __m256i low_scales,
               __m256i high_scales) {
    return _mm256_add_epi32(_mm256_madd_epi16(multiply<0>(weights, low), low_scales),
                            _mm256_madd_epi16(multiply<4>(weights, high), high_scales));
}

// Four 16-bit elements of each of four rows' scales.
template <int FIRST> __m256i repeated_scales(__m128i scales) {
    const int64_t zeros = static_cast<int64_t>(0x8000800080008000);
    const int64_t ones = 0x0001000100010001;
    const __m256i order = _mm256_setr_epi64x(zeros | ones * FIRST, zeros | ones * (FIRST + 1),
                                             zeros | ones * (FIRST + 2), zeros | ones * (FIRST + 3));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(scales), order);
}

__m256i products_of_pair(const uint8_t * weights, const int8_t * activations, __m128i low_scales, __m128i high_scales) {
    __m256i low[4];
    __m256i high[4];
    for (int chunk = 0; chunk < 4; ++chunk) {
        low[chunk] = repeated_8_bytes(activations + 8 * chunk);
        high[chunk] = repeated_8_bytes(activations + 32 + 8 * chunk);
    }
    return _mm256_hadd_epi32(
        scaled(weights, low, high, repeated_scales<0>(low_scales), repeated_scales<0>(high_scales)),
        scaled(weights + 32, low, high, repeated_scales<4>(low_scales), repeated_scales<4>(high_scales)));
}

__m256i minima_of_pair(const int16_t * sums_of_activations, __m128i low, __m128i high) {
    int32_t both;
    std::memcpy(&both, sums_of_activations, sizeof(both));
    return _mm256_madd_epi16(_mm256_set1_epi32(both), _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high)));
}

void add_superblock(Sums & sums, const block_q4_Kx8 & x, const block_q8_K & y) {
    const __m256 activations = _mm256_set1_ps(y.d);
    const __m256 scale = _mm256_mul_ps(in_order_of_products(to_floats(x.d)), activations);
    const __m256 scale_of_minima = _mm256_mul_ps(to_floats(x.dmin), activations);
    const __m256i sixteenths = load(y.bsums);
    alignas(16) int16_t eighths[8];
    _mm_store_si128(reinterpret_cast<__m128i *>(eighths),
                    _mm_hadd_epi16(_mm256_castsi256_si128(sixteenths), _mm256_extracti128_si256(sixteenths, 1)));
    for (int pair = 0; pair < PAIRS; ++pair) {
        const PackedScales low = unpack(x.scales + 24 * pair);
        const PackedScales high = unpack(x.scales + 24 * pair + 12);
        const __m256i products = products_of_pair(x.qs + 256 * pair, y.qs + 64 * pair, low.scales, high.scales);
        const __m256i minima = minima_of_pair(eighths + 2 * pair, low.minima, high.minima);
        sums.products = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, sums.products);
        sums.minima = _mm256_fmadd_ps(_mm256_cvtepi32_ps(minima), scale_of_minima, sums.minima);
    }
}

} // namespace

extern "C" void ggml_gemv_q4_K_8x8_q8_K(int n, float * s, size_t, const void * vx, const void * vy, int, int columns) {
    const int superblocks = n / QK_K;
    const auto * x = static_cast<const block_q4_Kx8 *>(vx);
    const auto * y = static_cast<const block_q8_K *>(vy);
    for (int column = 0; column < columns; column += 8) {
        Sums sums;
        for (int i = 0; i < superblocks; ++i) {
            add_superblock(sums, *x++, y[i]);
        }
        // The order of products is its own inverse.
        _mm256_storeu_ps(s + column, _mm256_sub_ps(in_order_of_products(sums.products), sums.minima));
    }
}

#else

extern "C" void ggml_gemv_q4_K_8x8_q8_K(int n, float * s, size_t bs, const void * vx, const void * vy, int rows,
                                        int columns) {
    ggml_own_gemv_q4_K_8x8_q8_K(n, s, bs, vx, vy, rows, columns);
}

#endif

#endif
