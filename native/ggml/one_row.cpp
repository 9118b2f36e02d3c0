// One row of activations times weights in F32, F16 or BF16. It takes the place of ggml's choice (cmake/llama_cpp.cmake).
//
// ggml gives a single row to dot products, and more rows to tiles (llamafile/sgemm.cpp). The two round differently, so that
// a token's logits would depend on whether another is computed with it. Here a single row has the arithmetic of a tile:
// each lane of a vector is a chain of fused multiply-adds over the row, and the lanes are added at the end.
//
// With AVX-512 and with AVX alone, whose tiles have other arithmetic, the tiles themselves compute a single row, as two that
// lie at the same place: a tile computes each of its elements by itself, and writes both to the same place.

#include "ggml-cpu-impl.h"
#include "ggml.h"
#include "llamafile/sgemm.h"

#include <algorithm>
#include <cstdint>

#if defined(GGML_USE_LLAMAFILE)

// ggml's own, renamed. It does not compute a single row.
extern "C" bool ggml_own_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                               int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype,
                               int Ctype);

namespace {

// The matrix that a single row is multiplied by, as llamafile_sgemm gets it.
struct Product {
    const ggml_compute_params * params;
    int64_t m; // rows of weights
    int64_t k; // elements of each
    const void * a;
    int64_t lda; // elements from one row of weights to the next
    const void * b;
    float * c;
    int a_type;
    int b_type;
};

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)

constexpr int LANES = 8;
constexpr int AT_ONCE = 4; // rows of weights; the tiles, too, take a multiple of four or nothing
constexpr int64_t STEP = 4 * LANES; // a cache line of 16-bit elements
constexpr int64_t ROWS_OF_JOB = 64; // which a thread takes at once

__m256 load(const float * elements) { return _mm256_loadu_ps(elements); }

// Sixteen bits each.
__m128i load_halves(const void * elements) { return _mm_loadu_si128(static_cast<const __m128i *>(elements)); }

__m256 load(const ggml_fp16_t * elements) { return _mm256_cvtph_ps(load_halves(elements)); }

__m256 load(const ggml_bf16_t * elements) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(elements)), 16));
}

float added_lanes(__m256 lanes) {
    const __m128 four = _mm_add_ps(_mm256_extractf128_ps(lanes, 1), _mm256_castps256_ps128(lanes));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The rows of weights that are multiplied at once, and their sums.
template <class T> struct Rows {
    const T * weights[AT_ONCE];
    __m256 sums[AT_ONCE];
};

template <class T> void add_elements(Rows<T> & rows, const T * activations, int64_t i) {
    const __m256 factors = load(activations + i);
    for (int row = 0; row < AT_ONCE; ++row) {
        rows.sums[row] = _mm256_fmadd_ps(load(rows.weights[row] + i), factors, rows.sums[row]);
    }
}

template <class T> void multiply_rows(const Product & of, int64_t first) {
    Rows<T> rows;
    for (int row = 0; row < AT_ONCE; ++row) {
        rows.weights[row] = static_cast<const T *>(of.a) + (first + row) * of.lda;
        rows.sums[row] = _mm256_setzero_ps();
    }
    const auto * activations = static_cast<const T *>(of.b);
    int64_t i = 0;
    for (; i + STEP <= of.k; i += STEP) {
        // The next rows: the processor does not foresee four streams that begin anew so soon.
        for (const T * weights : rows.weights) {
            _mm_prefetch(reinterpret_cast<const char *>(weights + AT_ONCE * of.lda + i), _MM_HINT_T0);
        }
        for (int64_t j = i; j < i + STEP; j += LANES) {
            add_elements(rows, activations, j);
        }
    }
    for (; i < of.k; i += LANES) {
        add_elements(rows, activations, i);
    }
    for (int row = 0; row < AT_ONCE; ++row) {
        of.c[first + row] = added_lanes(rows.sums[row]);
    }
}

template <class T> bool multiply_in_jobs(const Product & of) {
    if (of.k % LANES != 0 || of.m % AT_ONCE != 0) {
        return false; // as the tiles do, so that more rows are multiplied by dot products, too
    }
    if (of.params->ith == 0) {
        ggml_threadpool_chunk_set(of.params->threadpool, of.params->nth);
    }
    ggml_barrier(of.params->threadpool);
    int64_t job = of.params->ith;
    while (job * ROWS_OF_JOB < of.m) {
        const int64_t end = std::min(of.m, (job + 1) * ROWS_OF_JOB);
        for (int64_t row = job * ROWS_OF_JOB; row < end; row += AT_ONCE) {
            multiply_rows<T>(of, row);
        }
        job = ggml_threadpool_chunk_add(of.params->threadpool, 1);
    }
    ggml_barrier(of.params->threadpool); // before the next product counts its jobs
    return true;
}

bool multiply(const Product & of) {
    if (of.a_type != of.b_type) {
        return false;
    }
    switch (of.a_type) {
        case GGML_TYPE_F32: return multiply_in_jobs<float>(of);
        case GGML_TYPE_F16: return multiply_in_jobs<ggml_fp16_t>(of);
        case GGML_TYPE_BF16: return multiply_in_jobs<ggml_bf16_t>(of);
        default: return false;
    }
}

#elif defined(__AVX__)

bool multiply(const Product & of) {
    if (of.a_type != GGML_TYPE_F32 && of.a_type != GGML_TYPE_F16 && of.a_type != GGML_TYPE_BF16) {
        return false;
    }
    return ggml_own_sgemm(of.params, of.m, 2, of.k, of.a, of.lda, of.b, 0, of.c, 0, of.a_type, of.b_type,
                          GGML_TYPE_F32);
}

#else

bool multiply(const Product &) { return false; }

#endif

} // namespace

bool llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A, int64_t lda,
                     const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    if (n == 1 && Ctype == GGML_TYPE_F32 &&
        multiply({params, m, k, A, lda, B, static_cast<float *>(C), Atype, Btype})) {
        return true;
    }
    return ggml_own_sgemm(params, m, n, k, A, lda, B, ldb, C, ldc, Atype, Btype, Ctype);
}

#endif
