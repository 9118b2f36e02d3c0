// Flash attention of the CPU's back end over F16 or F32 cells. It takes the place of ggml's (cmake/llama_cpp.cmake).
//
// ggml has three kernels, and the rows of the graph, the cells in use and the threads choose one. They round differently,
// so that an answer would depend on its company, on how its prompt was cut into steps, and on the load of the machine.
// Here a row has one arithmetic. It sees nothing but its own query, and the cells in the order in which they lie:
//
//   - a score is a chain of fused multiply-adds over the head's elements, as in ggml's kernel for prompts;
//   - cells are taken in tiles of 64, and tiles in blocks of 512, both counted from the first cell;
//   - a block has a maximum, a sum and a weighted sum of values of its own, in 32 bits;
//   - blocks are merged in their order.
//
// How many rows, heads and blocks a thread takes at once decides about speed only. Heads that share keys and values are
// computed together, so that cells are converted once for all of them.

#include "common.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "ops.h"
#include "simd-mappings.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// ggml's own, renamed: for other types of cells, and for processors whose vectors have no fixed length.
extern "C" void ggml_own_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);

#if defined(GGML_SIMD) && !defined(__ARM_FEATURE_SVE) && !defined(__riscv_v_intrinsic)

namespace {

constexpr int64_t TILE = GGML_FA_TILE_KV; // cells
constexpr int64_t BLOCK = 8 * TILE; // cells
constexpr int64_t MOST_ROWS = 48; // at once; a multiple of the rows that the multiplication takes at once
constexpr int64_t UNITS_PER_THREAD = 4; // that even out what other programs take of a core
constexpr int64_t LANES = GGML_F32_EPR;
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

// -- C[M x N] += A[M x K] * B[K x N] ---------------------------------------------------------------------------------

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

// -- cells as 32-bit numbers -----------------------------------------------------------------------------------------

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
#else
constexpr int64_t SQUARE = 1;
#endif

// -- one call of the operation ---------------------------------------------------------------------------------------

// Maximum and sum of a row's weights, and, behind them, its weighted sum of values.
struct Sums {
    float maximum;
    float sum;
};
constexpr int64_t SUMS = sizeof(Sums) / sizeof(float);

// The part of the work buffer that a thread needs, for `rows` rows.
struct Scratch {
    float * queries; // rows x DK
    float * weights; // rows x TILE: scores, then weights
    float * block; // rows x DV: weighted sum of the block's values
    float * merged; // rows x (SUMS + DV)
    float * keys; // DK x TILE
    float * values; // TILE x DV
    float * mask; // TILE

    static int64_t size(int64_t rows, int64_t dk, int64_t dv) {
        return rows * (dk + TILE + dv + SUMS + dv) + TILE * (dk + dv + 1) + GGML_F32_EPR;
    }

    Scratch(float * begin, int64_t rows, int64_t dk, int64_t dv) {
        queries = begin;
        weights = queries + rows * dk;
        block = weights + rows * TILE;
        merged = block + rows * dv;
        keys = merged + rows * (SUMS + dv);
        values = keys + TILE * dk;
        mask = values + TILE * dv;
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

class Attention {
  public:
    Attention(const ggml_compute_params * params, ggml_tensor * dst)
        : params_(*params), dst_(*dst), q_(*dst->src[0]), k_(*dst->src[1]), v_(*dst->src[2]), mask_(dst->src[3]),
          sinks_(dst->src[4]), dk_(k_.ne[0]), dv_(v_.ne[0]), n_queries_(q_.ne[1]), n_heads_(q_.ne[2]),
          n_streams_(q_.ne[3]), heads_per_key_(q_.ne[2] / k_.ne[2]), n_blocks_((k_.ne[1] + BLOCK - 1) / BLOCK) {
        float options[3];
        std::memcpy(options, dst->op_params, sizeof(options));
        softcap_ = options[2];
        scale_ = softcap_ == 0.0F ? options[0] : options[0] / softcap_;
        max_bias_ = options[1];
        n_threads_ = params_.nth;
        share_out();
    }

    // ggml has made room for its own kernels.
    static bool has_room(const ggml_compute_params * params, const ggml_tensor * dst) {
        const int64_t one = Scratch::size(1, dst->src[1]->ne[0], dst->src[2]->ne[0]);
        return one <= floats_of(*params) / params->nth;
    }

    void run() {
        if (params_.ith == 0) {
            ggml_threadpool_chunk_set(params_.threadpool, params_.nth);
        }
        ggml_barrier(params_.threadpool);
        const int64_t n_units = n_items_ * (apart_ ? n_blocks_ : 1);
        for (int64_t unit = params_.ith; unit < n_units; unit = ggml_threadpool_chunk_add(params_.threadpool, 1)) {
            if (apart_) {
                compute(unit / n_blocks_, unit % n_blocks_, unit % n_blocks_ + 1);
            } else {
                compute(unit, 0, n_blocks_);
            }
        }
        if (apart_) {
            ggml_barrier(params_.threadpool);
            merge_all();
        }
    }

  private:
    // Rows of queries, and of the heads that share a key's head, of one stream.
    struct Item {
        int64_t stream;
        int64_t key_head;
        int64_t first_head; // of the key's head
        int64_t n_heads;
        int64_t first_query;
        int64_t n_queries;

        int64_t n_rows() const { return n_heads * n_queries; }
    };

    static int64_t floats_of(const ggml_compute_params & params) {
        return static_cast<int64_t>(params.wsize / sizeof(float));
    }

    // How the work is cut. No row's arithmetic depends on it.
    void share_out() {
        const int64_t room = floats_of(params_) / n_threads_;
        int64_t rows = MOST_ROWS;
        while (rows > 1 && Scratch::size(rows, dk_, dv_) > room) {
            rows = rows > 6 ? rows - 6 : 1;
        }
        heads_at_once_ = std::min(heads_per_key_, rows);
        queries_at_once_ = std::min(rows / heads_at_once_, n_queries_);
        while (queries_at_once_ > 1 && count_items() < UNITS_PER_THREAD * n_threads_) {
            queries_at_once_ = (queries_at_once_ + 1) / 2;
        }
        const auto fits = [&] {
            const int64_t used = n_threads_ * Scratch::size(heads_at_once_ * queries_at_once_, dk_, dv_);
            return used + n_queries_ * n_heads_ * n_streams_ * n_blocks_ * (SUMS + dv_) <= floats_of(params_);
        };
        n_items_ = count_items();
        apart_ = n_blocks_ > 1 && n_items_ < UNITS_PER_THREAD * n_threads_ && fits();
        while (!apart_ && heads_at_once_ > 1 && n_items_ < n_threads_) {
            heads_at_once_ = (heads_at_once_ + 1) / 2;
            n_items_ = count_items();
        }
        scratch_size_ = Scratch::size(heads_at_once_ * queries_at_once_, dk_, dv_);
        partials_ = static_cast<float *>(params_.wdata) + n_threads_ * scratch_size_;
    }

    int64_t head_groups() const { return (heads_per_key_ + heads_at_once_ - 1) / heads_at_once_; }
    int64_t query_groups() const { return (n_queries_ + queries_at_once_ - 1) / queries_at_once_; }
    int64_t count_items() const { return n_streams_ * k_.ne[2] * head_groups() * query_groups(); }

    Item item(int64_t number) const {
        // The last queries of a prompt see the most cells: first, so that no thread ends with them alone.
        const int64_t queries = query_groups() - 1 - number % query_groups();
        number /= query_groups();
        const int64_t heads = number % head_groups();
        number /= head_groups();
        Item found{number / k_.ne[2], number % k_.ne[2], heads * heads_at_once_, 0, queries * queries_at_once_, 0};
        found.n_heads = std::min(heads_at_once_, heads_per_key_ - found.first_head);
        found.n_queries = std::min(queries_at_once_, n_queries_ - found.first_query);
        return found;
    }

    int64_t head_of(const Item & item, int64_t row) const {
        return item.key_head * heads_per_key_ + item.first_head + row / item.n_queries;
    }
    static int64_t query_of(const Item & item, int64_t row) { return item.first_query + row % item.n_queries; }

    // Where ALiBi bends the mask; 1 elsewhere.
    float slope(int64_t head) const {
        if (max_bias_ <= 0.0F) {
            return 1.0F;
        }
        const auto n_log2 = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(n_heads_))));
        const float first = powf(2.0F, -max_bias_ / static_cast<float>(n_log2));
        const float second = powf(2.0F, -max_bias_ / 2.0F / static_cast<float>(n_log2));
        return head < n_log2 ? powf(first, static_cast<float>(head + 1))
                             : powf(second, static_cast<float>(2 * (head - n_log2) + 1));
    }

    const ggml_fp16_t * mask_row(const Item & item, int64_t row) const {
        const std::size_t at = static_cast<std::size_t>(query_of(item, row)) * mask_->nb[1] +
                               static_cast<std::size_t>(head_of(item, row) % mask_->ne[2]) * mask_->nb[2] +
                               static_cast<std::size_t>(item.stream % mask_->ne[3]) * mask_->nb[3];
        return reinterpret_cast<const ggml_fp16_t *>(static_cast<const char *>(mask_->data) + at);
    }

    void compute(int64_t number, int64_t first_block, int64_t end_block) const {
        const Item work = item(number);
        const Scratch scratch(static_cast<float *>(params_.wdata) + params_.ith * scratch_size_,
                              heads_at_once_ * queries_at_once_, dk_, dv_);
        read_queries(work, scratch);
        Sums sums[MOST_ROWS];
        if (!apart_) {
            for (int64_t row = 0; row < work.n_rows(); ++row) {
                clear_sums(scratch.merged + row * (SUMS + dv_));
            }
        }
        for (int64_t block = first_block; block < end_block; ++block) {
            const bool sees_any = compute_block(work, scratch, block, sums);
            for (int64_t row = 0; row < work.n_rows(); ++row) {
                const float * values = scratch.block + row * dv_;
                if (!apart_) {
                    if (sees_any) {
                        merge(scratch.merged + row * (SUMS + dv_), sums[row], values, dv_);
                    }
                    continue;
                }
                float * partial = partial_of(work, row, block);
                *reinterpret_cast<Sums *>(partial) = sees_any ? sums[row] : Sums{NOTHING, 0.0F};
                if (sees_any) {
                    std::memcpy(partial + SUMS, values, static_cast<std::size_t>(dv_) * sizeof(float));
                }
            }
        }
        if (!apart_) {
            for (int64_t row = 0; row < work.n_rows(); ++row) {
                write(scratch.merged + row * (SUMS + dv_), head_of(work, row), query_of(work, row), work.stream);
            }
        }
    }

    float * partial_of(const Item & item, int64_t row, int64_t block) const {
        const int64_t place = (item.stream * n_queries_ + query_of(item, row)) * n_heads_ + head_of(item, row);
        return partials_ + (place * n_blocks_ + block) * (SUMS + dv_);
    }

    void merge_all() const {
        const Scratch scratch(static_cast<float *>(params_.wdata) + params_.ith * scratch_size_,
                              heads_at_once_ * queries_at_once_, dk_, dv_);
        const int64_t n_places = n_streams_ * n_queries_ * n_heads_;
        for (int64_t place = params_.ith; place < n_places; place += n_threads_) {
            clear_sums(scratch.merged);
            for (int64_t block = 0; block < n_blocks_; ++block) {
                const float * partial = partials_ + (place * n_blocks_ + block) * (SUMS + dv_);
                merge(scratch.merged, *reinterpret_cast<const Sums *>(partial), partial + SUMS, dv_);
            }
            const int64_t row = place / n_heads_;
            write(scratch.merged, place % n_heads_, row % n_queries_, row / n_queries_);
        }
    }

    void clear_sums(float * sums) const {
        std::memset(sums, 0, static_cast<std::size_t>(SUMS + dv_) * sizeof(float));
        reinterpret_cast<Sums *>(sums)->maximum = NOTHING;
    }

    void read_queries(const Item & item, const Scratch & scratch) const {
        for (int64_t row = 0; row < item.n_rows(); ++row) {
            const char * query = static_cast<const char *>(q_.data) +
                                 static_cast<std::size_t>(query_of(item, row)) * q_.nb[1] +
                                 static_cast<std::size_t>(head_of(item, row)) * q_.nb[2] +
                                 static_cast<std::size_t>(item.stream) * q_.nb[3];
            std::memcpy(scratch.queries + row * dk_, query, static_cast<std::size_t>(dk_) * sizeof(float));
        }
    }

    // Returns whether any row sees any cell of it.
    bool compute_block(const Item & item, const Scratch & scratch, int64_t block, Sums * sums) const {
        bool sees_any = false;
        const int64_t end = std::min((block + 1) * BLOCK, k_.ne[1]);
        for (int64_t first = block * BLOCK; first < end; first += TILE) {
            const int64_t n_cells = std::min(TILE, end - first);
            if (!is_visible(item, first, n_cells)) {
                continue;
            }
            if (!sees_any) {
                std::fill_n(sums, item.n_rows(), Sums{NOTHING, 0.0F});
                std::memset(scratch.block, 0, static_cast<std::size_t>(item.n_rows() * dv_) * sizeof(float));
                sees_any = true;
            }
            compute_tile(item, scratch, first, n_cells, sums);
        }
        return sees_any;
    }

    bool is_visible(const Item & item, int64_t first, int64_t n_cells) const {
        if (mask_ == nullptr) {
            return true;
        }
        const int64_t n_rows =
            mask_->ne[2] == 1 ? item.n_queries : item.n_rows(); // one mask for all heads, or for each
        for (int64_t row = n_rows - 1; row >= 0; --row) {
            if (std::memcmp(mask_row(item, row) + first, MASKED_TILE.cells, static_cast<std::size_t>(n_cells) * 2) !=
                0) {
                return true;
            }
        }
        return false;
    }

    void compute_tile(const Item & item, const Scratch & scratch, int64_t first, int64_t n_cells, Sums * sums) const {
        read_keys(item, scratch.keys, first, n_cells);
        const int64_t n_rows = item.n_rows();
        std::memset(scratch.weights, 0, static_cast<std::size_t>(n_rows * TILE) * sizeof(float));
        multiply(scratch.weights, scratch.queries, scratch.keys, n_rows, dk_, TILE);
        for (int64_t row = 0; row < n_rows; ++row) {
            weigh(item, scratch, row, first, n_cells, sums[row]);
        }
        read_values(item, scratch.values, first, n_cells);
        multiply(scratch.block, scratch.weights, scratch.values, n_rows, TILE, dv_);
    }

    const char * cell(const ggml_tensor & cells, const Item & item, int64_t number) const {
        const int64_t head = item.key_head / (k_.ne[2] / cells.ne[2]);
        const int64_t stream = item.stream / (n_streams_ / cells.ne[3]);
        return static_cast<const char *>(cells.data) + static_cast<std::size_t>(number) * cells.nb[1] +
               static_cast<std::size_t>(head) * cells.nb[2] + static_cast<std::size_t>(stream) * cells.nb[3];
    }

    // Turned, so that the cells of an element are neighbours. What is behind the last cell is masked.
    void read_keys(const Item & item, float * keys, int64_t first, int64_t n_cells) const {
        if (n_cells < TILE) {
            std::memset(keys, 0, static_cast<std::size_t>(TILE * dk_) * sizeof(float));
        }
        int64_t next = 0;
#if defined(__AVX2__) && defined(__F16C__)
        if (k_.type == GGML_TYPE_F16 && dk_ % SQUARE == 0) {
            for (; next + SQUARE <= n_cells; next += SQUARE) {
                const char * from = cell(k_, item, first + next);
                for (int64_t element = 0; element < dk_; element += SQUARE) {
                    turn_square(keys + element * TILE + next, from + element * 2, k_.nb[1]);
                }
            }
        }
#endif
        float row[64];
        for (; next < n_cells; ++next) {
            const char * from = cell(k_, item, first + next);
            for (int64_t element = 0; element < dk_; element += 64) {
                const int64_t n = std::min<int64_t>(64, dk_ - element);
                widen(row, from + static_cast<std::size_t>(element) * ggml_type_size(k_.type), k_.type, n);
                for (int64_t i = 0; i < n; ++i) {
                    keys[(element + i) * TILE + next] = row[i];
                }
            }
        }
    }

    void read_values(const Item & item, float * values, int64_t first, int64_t n_cells) const {
        for (int64_t number = 0; number < n_cells; ++number) {
            widen(values + number * dv_, cell(v_, item, first + number), v_.type, dv_);
        }
        std::memset(values + n_cells * dv_, 0, static_cast<std::size_t>((TILE - n_cells) * dv_) * sizeof(float));
    }

    // From scores to weights, with the maximum so far.
    void weigh(const Item & item, const Scratch & scratch, int64_t row, int64_t first, int64_t n_cells,
               Sums & sums) const {
        float * weights = scratch.weights + row * TILE;
        ggml_vec_scale_f32(TILE, weights, scale_);
        if (softcap_ != 0.0F) {
            ggml_vec_tanh_f32(TILE, weights, weights);
            ggml_vec_scale_f32(TILE, weights, softcap_);
        }
        std::fill(weights + n_cells, weights + TILE, NOTHING);
        if (mask_ != nullptr) {
            ggml_cpu_fp16_to_fp32(mask_row(item, row) + first, scratch.mask, n_cells);
            std::fill(scratch.mask + n_cells, scratch.mask + TILE, 0.0F);
            const float bend = slope(head_of(item, row));
            for (int64_t i = 0; i < TILE; ++i) {
                weights[i] += bend * scratch.mask[i];
            }
        }
        float maximum = NOTHING;
        ggml_vec_max_f32(TILE, &maximum, weights);
        if (maximum == NOTHING) {
            std::memset(weights, 0, TILE * sizeof(float));
            return;
        }
        if (maximum > sums.maximum) {
            const float share = expf(sums.maximum - maximum);
            ggml_vec_scale_f32(static_cast<int>(dv_), scratch.block + row * dv_, share);
            sums = {maximum, sums.sum * share};
        }
        sums.sum += static_cast<float>(ggml_vec_soft_max_f32(TILE, weights, weights, sums.maximum));
    }

    void write(float * merged, int64_t head, int64_t query, int64_t stream) const {
        const Sums & sums = *reinterpret_cast<const Sums *>(merged);
        float * values = merged + SUMS;
        float all = sums.sum;
        if (sinks_ != nullptr) {
            const float sink = static_cast<const float *>(sinks_->data)[head];
            const float maximum = std::max(sums.maximum, sink);
            const float share = expf(sums.maximum - maximum);
            ggml_vec_scale_f32(static_cast<int>(dv_), values, share);
            all = all * share + expf(sink - maximum);
        }
        ggml_vec_scale_f32(static_cast<int>(dv_), values, all == 0.0F ? 0.0F : 1.0F / all);
        const int64_t place = (stream * dst_.ne[2] + query) * dst_.ne[1] + head;
        std::memcpy(static_cast<char *>(dst_.data) + static_cast<std::size_t>(place) * dst_.nb[1], values, dst_.nb[1]);
    }

    const ggml_compute_params & params_;
    ggml_tensor & dst_;
    const ggml_tensor & q_;
    const ggml_tensor & k_;
    const ggml_tensor & v_;
    const ggml_tensor * mask_;
    const ggml_tensor * sinks_;
    int64_t dk_; // elements of a query and of a key
    int64_t dv_; // elements of a value
    int64_t n_queries_;
    int64_t n_heads_;
    int64_t n_streams_;
    int64_t heads_per_key_;
    int64_t n_blocks_;
    int64_t n_threads_ = 1;
    float scale_ = 1.0F;
    float softcap_ = 0.0F;
    float max_bias_ = 0.0F;
    int64_t heads_at_once_ = 1;
    int64_t queries_at_once_ = 1;
    int64_t n_items_ = 0;
    int64_t scratch_size_ = 0;
    bool apart_ = false; // blocks are computed apart, and merged afterwards
    float * partials_ = nullptr;
};

// Returns whether cells that a row does not see lie between those that it sees, as with unified cells that several
// sequences use.
bool is_scattered(const ggml_fp16_t * mask, int64_t n_cells) {
    int64_t n_visible = 0;
    for (int64_t i = 0; i < n_cells; ++i) {
        n_visible += mask[i] != MASKED;
    }
    int64_t first = 0;
    while (first < n_cells && mask[first] == MASKED) {
        ++first;
    }
    int64_t end = n_cells;
    while (end > first && mask[end - 1] == MASKED) {
        --end;
    }
    return end - first > n_visible;
}

// A few rows of which each sees some cells here and there: ggml's kernel skips the others one by one, ours tile by tile.
bool sees_here_and_there(const ggml_tensor * dst) {
    const ggml_tensor * mask = dst->src[3];
    const int64_t n_queries = dst->src[0]->ne[1];
    if (mask == nullptr || dst->src[0]->ne[3] > 1 || n_queries >= TILE) {
        return false;
    }
    for (int64_t row = 0; row < n_queries; ++row) {
        const char * at = static_cast<const char *>(mask->data) + static_cast<std::size_t>(row) * mask->nb[1];
        if (is_scattered(reinterpret_cast<const ggml_fp16_t *>(at), dst->src[1]->ne[1])) {
            return true;
        }
    }
    return false;
}

bool is_ours(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_type k = dst->src[1]->type;
    const ggml_type v = dst->src[2]->type;
    const bool wide = k == v && (k == GGML_TYPE_F16 || k == GGML_TYPE_F32);
    return !params->use_ref && wide && dst->src[0]->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_F32 &&
           dst->nb[1] == static_cast<std::size_t>(dst->ne[0]) * sizeof(float) && Attention::has_room(params, dst) &&
           !sees_here_and_there(dst);
}

} // namespace

extern "C" void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    if (is_ours(params, dst)) {
        Attention(params, dst).run();
    } else {
        ggml_own_flash_attn_ext(params, dst);
    }
}

#else

extern "C" void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    ggml_own_flash_attn_ext(params, dst);
}

#endif
