// A panel of weights times one to four rows of activations: eight rows of results, which stay in registers.
//
// A lane of each vector belongs to a row of weights. A product's sum has one order, however many rows of activations there
// are: the products of a block (or of 256 elements) are integers, whose sum is exact; it is multiplied by the scales of the
// weights and the activations, and added to those of the blocks before.

#pragma once

#include "ggml/panel_activations.hpp"

#include <type_traits>
#include <utility>

namespace panels {

inline __m256i load(const void * bytes) { return _mm256_loadu_si256(static_cast<const __m256i *>(bytes)); }

inline __m256 load(const Halves & halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves)));
}

// Four bytes for each row.
inline __m256i repeated(const void * four_bytes) {
    int32_t value;
    std::memcpy(&value, four_bytes, sizeof(value));
    return _mm256_set1_epi32(value);
}

// The bits of MASK in each byte, moved to the left, or by a negative SHIFT to the right.
template <int SHIFT, int MASK> __m256i bits(__m256i bytes) {
    const __m256i moved =
        SHIFT >= 0 ? _mm256_slli_epi16(bytes, SHIFT < 0 ? 0 : SHIFT) : _mm256_srli_epi16(bytes, SHIFT < 0 ? -SHIFT : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8(MASK));
}

// The group G of a block of 32: the low halves of the words, then the high ones.
template <int G> __m256i nibbles(const Words<4> & words) { return bits<(G < 4 ? 0 : -4), 15>(load(words[G % 4])); }

// How a type's codes are read: `codes<G>` are those of the elements from 4 * G on, a group. MAX is the largest magnitude.
struct Unsigned {
    static constexpr bool SIGNED = false;

    // The group that is read as the nth: a word's low and high halves, four groups apart, one after the other.
    static constexpr int order(int n) { return n / 8 * 8 + n % 2 * 4 + n % 8 / 2; }
};

struct Signed : Unsigned {
    static constexpr bool SIGNED = true;
    static constexpr int OFFSET = 0;
};

// Types whose words have halves of different sub-blocks.
struct OfSuperblock : Unsigned {
    static constexpr int OFFSET = 0;

    static constexpr int order(int n) { return n; }
};

template <class Block> struct Codes;

template <> struct Codes<block_q4_0> : Unsigned {
    static constexpr int MAX = 15;
    static constexpr int OFFSET = -8;
    static constexpr bool HAS_MINIMA = false;

    template <int G> static __m256i codes(const Panel<block_q4_0> & panel) { return nibbles<G>(panel.qs); }
};

template <> struct Codes<block_q4_1> : Unsigned {
    static constexpr int MAX = 15;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_MINIMA = true;

    template <int G> static __m256i codes(const Panel<block_q4_1> & panel) { return nibbles<G>(panel.qs); }
};

struct FiveBits : Unsigned {
    static constexpr int MAX = 31;

    template <int G, class P> static __m256i codes(const P & panel) {
        return _mm256_or_si256(nibbles<G>(panel.qs), bits<4 - G, 16>(load(panel.qh)));
    }
};

template <> struct Codes<block_q5_0> : FiveBits {
    static constexpr int OFFSET = -16;
    static constexpr bool HAS_MINIMA = false;
};

template <> struct Codes<block_q5_1> : FiveBits {
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_MINIMA = true;
};

template <> struct Codes<block_q8_0> : Signed {
    static constexpr int MAX = 128;
    static constexpr bool HAS_MINIMA = false;

    template <int G> static __m256i codes(const Panel<block_q8_0> & panel) { return load(panel.qs[G]); }
};

// The values of non-linear codes of four bits.
inline __m256i looked_up(__m256i codes) {
    const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

template <> struct Codes<block_iq4_nl> : Signed {
    static constexpr int MAX = 127;
    static constexpr bool HAS_MINIMA = false;

    template <int G> static __m256i codes(const Panel<block_iq4_nl> & panel) { return looked_up(nibbles<G>(panel.qs)); }
};

// Its values, doubled, are -12 to 12.
template <> struct Codes<block_mxfp4> : Unsigned {
    static constexpr int MAX = 24;
    static constexpr int OFFSET = -12;
    static constexpr bool HAS_MINIMA = false;

    template <int G> static __m256i codes(const Panel<block_mxfp4> & panel) {
        const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles<G>(panel.qs));
    }
};

template <> struct Codes<block_q4_K> : OfSuperblock {
    static constexpr int MAX = 15;

    template <int G> static __m256i codes(const Panel<block_q4_K> & panel) {
        return bits<(G / 8 % 2 == 0 ? 0 : -4), 15>(load(panel.qs[G / 16 * 8 + G % 8]));
    }
};

template <> struct Codes<block_q5_K> : OfSuperblock {
    static constexpr int MAX = 31;

    template <int G> static __m256i codes(const Panel<block_q5_K> & panel) {
        return _mm256_or_si256(bits<(G / 8 % 2 == 0 ? 0 : -4), 15>(load(panel.qs[G / 16 * 8 + G % 8])),
                               bits<4 - G / 8, 16>(load(panel.qh[G % 8])));
    }
};

template <> struct Codes<block_q6_K> : OfSuperblock {
    static constexpr int MAX = 63; // an offset of 32 is taken off with the scales

    template <int G> static __m256i codes(const Panel<block_q6_K> & panel) {
        constexpr int HALF = G / 32;
        constexpr int QUARTER = G % 32 / 8;
        return _mm256_or_si256(bits<(QUARTER < 2 ? 0 : -4), 15>(load(panel.ql[HALF * 16 + QUARTER % 2 * 8 + G % 8])),
                               bits<4 - 2 * QUARTER, 48>(load(panel.qh[HALF * 8 + G % 8])));
    }
};

template <> struct Codes<block_iq4_xs> : Signed {
    static constexpr int MAX = 127;

    template <int G> static __m256i codes(const Panel<block_iq4_xs> & panel) {
        return looked_up(bits<(G % 8 < 4 ? 0 : -4), 15>(load(panel.qs[G / 8 * 4 + G % 4])));
    }
};

// Sums of the four products of each row, as pairs of 16 bits.
template <bool SIGNED> __m256i multiply(__m256i codes, __m256i magnitudes, __m256i activations) {
    return SIGNED ? _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(activations, codes))
                  : _mm256_maddubs_epi16(codes, activations);
}

// Keeps a compiler from putting off an addition: with all products of a sub-block at once it would run out of registers.
inline __m256i compute_now(__m256i value) {
#if defined(__GNUC__)
    asm volatile("" : "+x"(value));
#endif
    return value;
}

template <class F, int... I> [[gnu::always_inline]] inline void call_each(F && f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}

// Calls f with 0 to N - 1, each a constant.
template <int N, class F> [[gnu::always_inline]] inline void unrolled(F && f) {
    call_each(f, std::make_integer_sequence<int, N>{});
}

// N groups from FIRST on, whose products fit into 16 bits when they are added; their sum is multiplied by FACTOR.
template <class Block, int FIRST, int N, int COUNT>
[[gnu::always_inline]] inline void add_groups(const Panel<Block> & panel, const int8_t * const (&x)[COUNT],
                                              __m256i factor, __m256i (&sums)[COUNT]) {
    using Type = Codes<Block>;
    __m256i of_16_bits[COUNT];
    unrolled<N>([&](auto n) {
        constexpr int I = FIRST + decltype(n)::value;
        constexpr int G = Type::order(I);
        const __m256i codes = Type::template codes<G>(panel);
        const __m256i magnitudes = Type::SIGNED ? _mm256_abs_epi8(codes) : codes;
        unrolled<COUNT>([&](auto row) {
            const __m256i products = multiply<Type::SIGNED>(codes, magnitudes, repeated(x[row] + 4 * G));
            of_16_bits[row] = compute_now(I == FIRST ? products : _mm256_add_epi16(of_16_bits[row], products));
        });
    });
    unrolled<COUNT>([&](auto row) {
        sums[row] = compute_now(_mm256_add_epi32(sums[row], _mm256_madd_epi16(of_16_bits[row], factor)));
    });
}

// The number of groups, of N, whose products fit into 16 bits when they are added: a power of two, as N is.
constexpr int fitting(int largest_code, int n) {
    return n == 1 || n * 2 * 127 * largest_code <= 32767 ? n : fitting(largest_code, n / 2);
}

template <int COUNT> [[gnu::always_inline]] inline void clear(__m256i (&sums)[COUNT]) {
    for (__m256i & sum : sums) {
        sum = _mm256_setzero_si256();
    }
}

// The four products of each row, added to a sum of 32 bits at once, where the processor can.
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
constexpr bool HAS_DOTS = true;
inline __m256i add_dots(__m256i sums, __m256i codes, __m256i x) { return _mm256_dpbusd_epi32(sums, codes, x); }
#elif defined(__AVXVNNI__)
constexpr bool HAS_DOTS = true;
inline __m256i add_dots(__m256i sums, __m256i codes, __m256i x) { return _mm256_dpbusd_avx_epi32(sums, codes, x); }
#else
constexpr bool HAS_DOTS = false;
inline __m256i add_dots(__m256i sums, __m256i, __m256i) { return sums; } // not called
#endif

// As add_groups, of any number of groups.
template <class Block, int FIRST, int N, int COUNT>
[[gnu::always_inline]] inline void add_dots_of(const Panel<Block> & panel, const int8_t * const (&x)[COUNT],
                                               __m256i factor, __m256i (&sums)[COUNT]) {
    using Type = Codes<Block>;
    __m256i of_groups[COUNT];
    clear(of_groups);
    unrolled<N>([&](auto n) {
        constexpr int G = Type::order(FIRST + decltype(n)::value);
        const __m256i codes = Type::template codes<G>(panel);
        const __m256i magnitudes = Type::SIGNED ? _mm256_abs_epi8(codes) : codes;
        for (int row = 0; row < COUNT; ++row) {
            const __m256i of_row = repeated(x[row] + 4 * G);
            of_groups[row] =
                add_dots(of_groups[row], magnitudes, Type::SIGNED ? _mm256_sign_epi8(of_row, codes) : of_row);
        }
    });
    for (int row = 0; row < COUNT; ++row) {
        const __m256i product = sizeof(panel) < 1024
                                    ? of_groups[row] // a block of 32 has no factors
                                    : _mm256_mullo_epi32(of_groups[row], _mm256_srai_epi32(factor, 16));
        sums[row] = _mm256_add_epi32(sums[row], product);
    }
}

// The products of N groups, a sub-block, which has one factor for each row of weights.
template <class Block, int FIRST, int N, int COUNT>
[[gnu::always_inline]] inline void add_products(const Panel<Block> & panel, const int8_t * const (&x)[COUNT],
                                                __m256i factor, __m256i (&sums)[COUNT]) {
    if constexpr (HAS_DOTS) {
        add_dots_of<Block, FIRST, N>(panel, x, factor, sums);
    } else {
        constexpr int AT_ONCE = fitting(Codes<Block>::MAX, N);
        unrolled<N / AT_ONCE>(
            [&](auto i) { add_groups<Block, FIRST + decltype(i)::value * AT_ONCE, AT_ONCE>(panel, x, factor, sums); });
    }
}

// -- blocks of 32 ----------------------------------------------------------------------------------------------------

template <class Block> __m256 scales(const Panel<Block> & panel) { return load(panel.d); }

// Half of two to the power of the exponent less 127. (Those of 0 and 1 are no normal numbers, and count as zero.)
inline __m256 scales(const Panel<block_mxfp4> & panel) {
    const __m256i exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(panel.e)));
    const __m256i less = _mm256_max_epi32(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)), _mm256_setzero_si256());
    return _mm256_castsi256_ps(_mm256_slli_epi32(less, 23));
}

template <class Block, int COUNT>
[[gnu::always_inline]] inline void add_block(const Panel<Block> & panel, const ActivationsOf32 * const (&x)[COUNT],
                                             __m256 (&results)[COUNT]) {
    using Type = Codes<Block>;
    const int8_t * codes[COUNT];
    __m256i sums[COUNT];
    for (int row = 0; row < COUNT; ++row) {
        codes[row] = x[row]->qs;
        sums[row] = Type::OFFSET == 0 ? _mm256_setzero_si256() : _mm256_set1_epi32(x[row]->offset);
    }
    add_products<Block, 0, 8>(panel, codes, _mm256_set1_epi16(1), sums);
    const __m256 d = scales(panel);
    for (int row = 0; row < COUNT; ++row) {
        const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x[row]->d));
        results[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[row]), scale, results[row]);
    }
    if constexpr (Type::HAS_MINIMA) {
        const __m256 m = load(panel.m);
        for (int row = 0; row < COUNT; ++row) {
            results[row] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[row]->sum), results[row]);
        }
    }
}

// -- blocks of 256 ---------------------------------------------------------------------------------------------------

using Bytes = uint8_t[ROWS][2];

inline __m256i widened(const Bytes & pair) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(pair)));
}

inline __m256i widened_signed(const Bytes & pair) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(pair)));
}

// The first or the second of each row's two elements of 16 bits, twice.
template <int WHICH> __m256i doubled(__m256i pairs) {
    const __m256i order = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5,
                                           8, 9, 8, 9, 12, 13, 12, 13);
    return _mm256_shuffle_epi8(pairs, _mm256_add_epi8(order, _mm256_set1_epi8(2 * WHICH)));
}

// The products of two sub-blocks of N groups each, multiplied by their scales.
template <class Block, int FIRST, int N, int COUNT>
[[gnu::always_inline]] inline void add_pair(const Panel<Block> & panel, const int8_t * const (&x)[COUNT],
                                            __m256i scales, __m256i (&sums)[COUNT]) {
    add_products<Block, FIRST, N>(panel, x, doubled<0>(scales), sums);
    add_products<Block, FIRST + N, N>(panel, x, doubled<1>(scales), sums);
}

// The factors of the sums of two sub-blocks' activations: minima, or scales of codes that have an offset.
inline __m256i factors_of_sums(const ScalesAndMinima & panel, int pair) { return widened(panel.minima[pair]); }

inline __m256i factors_of_sums(const Panel<block_q6_K> & panel, int pair) { return widened_signed(panel.scales[pair]); }

template <class Block, int COUNT>
[[gnu::always_inline]] inline void add_block(const Panel<Block> & panel, const ActivationsOf256 * const (&x)[COUNT],
                                             __m256 (&results)[COUNT]) {
    constexpr bool HAS_MINIMA = std::is_base_of_v<ScalesAndMinima, Panel<Block>>;
    constexpr bool IS_Q6 = std::is_same_v<Block, block_q6_K>;
    constexpr int N_PAIRS = sizeof(panel.scales) / sizeof(Bytes);
    const int8_t * codes[COUNT];
    __m256i sums[COUNT];
    __m256i others[COUNT]; // of the minima, or of the offset of the codes
    clear(sums);
    clear(others);
    for (int row = 0; row < COUNT; ++row) {
        codes[row] = x[row]->qs;
    }
    unrolled<N_PAIRS>([&](auto pair) {
        constexpr int I = decltype(pair)::value;
        constexpr int GROUPS = 64 / (2 * N_PAIRS);
        const __m256i scales = HAS_MINIMA ? widened(panel.scales[I]) : widened_signed(panel.scales[I]);
        add_pair<Block, 2 * I * GROUPS, GROUPS>(panel, codes, scales, sums);
    });
    if constexpr (HAS_MINIMA || IS_Q6) {
        for (int i = 0; i < N_PAIRS; ++i) {
            const __m256i factors = factors_of_sums(panel, i);
            for (int row = 0; row < COUNT; ++row) {
                const int16_t * of_x = IS_Q6 ? x[row]->sums_of_16 : x[row]->sums_of_32;
                others[row] = _mm256_add_epi32(others[row], _mm256_madd_epi16(factors, repeated(of_x + 2 * i)));
            }
        }
    }
    const __m256 d = load(panel.d);
    for (int row = 0; row < COUNT; ++row) {
        const __m256 of_x = _mm256_set1_ps(x[row]->d);
        const __m256i sum = IS_Q6 ? _mm256_sub_epi32(sums[row], _mm256_slli_epi32(others[row], 5)) : sums[row];
        results[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, of_x), results[row]);
        if constexpr (HAS_MINIMA) {
            const __m256 dmin = _mm256_mul_ps(load(panel.dmin), of_x);
            results[row] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(others[row]), dmin, results[row]);
        }
    }
}

// -- all -------------------------------------------------------------------------------------------------------------

template <class Block> constexpr int BLOCK_SIZE = sizeof(Panel<Block>) < 1024 ? 32 : 256;

template <class Block>
using Activations = std::conditional_t<BLOCK_SIZE<Block> == 32, ActivationsOf32, ActivationsOf256>;

// A row of quantized activations, and where its products go.
struct Row {
    const void * x;
    float * y;
};

// One panel times COUNT rows.
template <class Block, int COUNT>
[[gnu::flatten]] void multiply(const Panel<Block> * panel, int64_t n_blocks, const Row * rows,
                               __m256 (&results)[COUNT]) {
    const Activations<Block> * x[COUNT];
    for (int row = 0; row < COUNT; ++row) {
        x[row] = static_cast<const Activations<Block> *>(rows[row].x);
        results[row] = _mm256_setzero_ps();
    }
    for (int64_t block = 0; block < n_blocks; ++block) {
        add_block<Block>(panel[block], x, results);
        for (const Activations<Block> *& of_row : x) {
            ++of_row;
        }
    }
}

} // namespace panels
