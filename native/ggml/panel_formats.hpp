// Quantized weights as panels: eight rows of a matrix, interleaved, so that a vector holds four neighbouring elements of each.
//
// A panel holds eight rows of one of ggml's blocks. Its words are those of ggml's blocks (four bytes: the codes of four
// elements, or their nibbles), of row 0 to 7 in turn. What a vector operation needs for all rows lies together, too: scales
// as fp16, and the scales of sub-blocks as bytes, those of two sub-blocks beside each other for each row.

#pragma once

#include "ggml.h"

#define GGML_COMMON_DECL_C
#include "ggml-common.h"

#include <cstdint>
#include <cstring>

namespace panels {

constexpr int ROWS = 8; // of a panel

template <int N> using Words = uint32_t[N][ROWS];
using Halves = ggml_half[ROWS];
template <int N> using Pairs = uint8_t[N / 2][ROWS][2]; // one byte for each of N sub-blocks

// N words of one row.
template <int N> void put(Words<N> & to, int row, const void * from) {
    for (int word = 0; word < N; ++word) {
        std::memcpy(&to[word][row], static_cast<const uint8_t *>(from) + 4 * word, 4);
    }
}

template <int N> void put_pairs(uint8_t (&to)[N][ROWS][2], int row, const uint8_t * from) {
    for (int pair = 0; pair < N; ++pair) {
        to[pair][row][0] = from[2 * pair];
        to[pair][row][1] = from[2 * pair + 1];
    }
}

// The fifth bits of 32 elements, as ggml has them, to: bit G of byte I is that of element 4 * G + I.
inline uint32_t by_group(const uint8_t (&bits)[4]) {
    uint32_t all;
    std::memcpy(&all, bits, sizeof(all));
    uint32_t found = 0;
    for (int group = 0; group < 8; ++group) {
        const uint32_t four = all >> (4 * group) & 15;
        // The four bits move to the lowest bit of a byte each.
        found |= ((four * 0x00204081U) & 0x01010101U) << group;
    }
    return found;
}

// ggml's scales and minima of eight sub-blocks, of 6 bits each in 12 bytes.
struct Unpacked {
    uint8_t scales[8];
    uint8_t minima[8];
};

inline Unpacked unpack(const uint8_t (&packed)[K_SCALE_SIZE]) {
    Unpacked found;
    for (int i = 0; i < 4; ++i) {
        found.scales[i] = packed[i] & 63;
        found.minima[i] = packed[i + 4] & 63;
        found.scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        found.minima[i + 4] = static_cast<uint8_t>(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
    return found;
}

// The panel of a type of block.
template <class Block> struct Panel;

// Types without minima: a scale, and the codes' words.
template <int N> struct Scaled {
    Halves d;
    Words<N> qs;

    template <class Block> void set(int row, const Block & block) {
        d[row] = block.d;
        put<N>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q4_0> : Scaled<4> {};
template <> struct Panel<block_iq4_nl> : Scaled<4> {};
template <> struct Panel<block_q8_0> : Scaled<8> {};

// Its scales are powers of two, of which the exponents are kept.
template <> struct Panel<block_mxfp4> {
    uint8_t e[ROWS];
    Words<4> qs;

    void set(int row, const block_mxfp4 & block) {
        e[row] = block.e;
        put<4>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q4_1> {
    Halves d;
    Halves m;
    Words<4> qs;

    void set(int row, const block_q4_1 & block) {
        d[row] = block.d;
        m[row] = block.m;
        put<4>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q5_0> {
    Halves d;
    uint32_t qh[ROWS];
    Words<4> qs;

    void set(int row, const block_q5_0 & block) {
        d[row] = block.d;
        qh[row] = by_group(block.qh);
        put<4>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q5_1> {
    Halves d;
    Halves m;
    uint32_t qh[ROWS];
    Words<4> qs;

    void set(int row, const block_q5_1 & block) {
        d[row] = block.d;
        m[row] = block.m;
        qh[row] = by_group(block.qh);
        put<4>(qs, row, block.qs);
    }
};

struct ScalesAndMinima {
    Halves d;
    Halves dmin;
    Pairs<8> scales;
    Pairs<8> minima;

    template <class Block> void set(int row, const Block & block) {
        d[row] = block.d;
        dmin[row] = block.dmin;
        const Unpacked unpacked = unpack(block.scales);
        put_pairs(scales, row, unpacked.scales);
        put_pairs(minima, row, unpacked.minima);
    }
};

template <> struct Panel<block_q4_K> : ScalesAndMinima {
    Words<32> qs;

    void set(int row, const block_q4_K & block) {
        ScalesAndMinima::set(row, block);
        put<32>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q5_K> : ScalesAndMinima {
    Words<8> qh;
    Words<32> qs;

    void set(int row, const block_q5_K & block) {
        ScalesAndMinima::set(row, block);
        put<8>(qh, row, block.qh);
        put<32>(qs, row, block.qs);
    }
};

template <> struct Panel<block_q6_K> {
    Halves d;
    Pairs<16> scales; // signed
    Words<16> qh;
    Words<32> ql;

    void set(int row, const block_q6_K & block) {
        d[row] = block.d;
        uint8_t bytes[16];
        std::memcpy(bytes, block.scales, sizeof(bytes));
        put_pairs(scales, row, bytes);
        put<16>(qh, row, block.qh);
        put<32>(ql, row, block.ql);
    }
};

template <> struct Panel<block_iq4_xs> {
    Halves d;
    Pairs<8> scales; // signed
    Words<32> qs;

    void set(int row, const block_iq4_xs & block) {
        d[row] = block.d;
        uint8_t unpacked[8];
        for (int i = 0; i < 8; ++i) {
            const int low = block.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            const int high = block.scales_h >> (2 * i) & 3;
            unpacked[i] = static_cast<uint8_t>((low | high << 4) - 32);
        }
        put_pairs(scales, row, unpacked);
        put<32>(qs, row, block.qs);
    }
};

} // namespace panels
