// One call of flash attention, as one of its threads computes it, for native/ggml/attention.cpp alone.
#pragma once

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "ggml/attention_cells.hpp"
#include "ggml/attention_division.hpp"
#include "ggml/attention_products.hpp"
#include "ggml/attention_tiles.hpp"
#include "ggml/leaving.hpp"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

class Attention {
  public:
    Attention(const ggml_compute_params * params, ggml_tensor * dst)
        : params_(*params), dst_(*dst), q_(*dst->src[0]), k_(*dst->src[1]), v_(*dst->src[2]), mask_(dst->src[3]),
          sinks_(dst->src[4]), shape_(*dst), division_(shape_, floats_of(*params), params->nth),
          scratch_(buffer_of(*params) + params->ith * division_.scratch_size(), division_.most_rows(), shape_.dk,
                   shape_.dv),
          partials_(buffer_of(*params) + params->nth * division_.scratch_size()) {
        float options[3];
        std::memcpy(options, dst->op_params, sizeof(options));
        softcap_ = options[2];
        scale_ = softcap_ == 0.0F ? options[0] : options[0] / softcap_;
        max_bias_ = options[1];
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
        const int64_t n_blocks = shape_.n_blocks;
        const int64_t n_units = division_.n_items() * (division_.apart() ? n_blocks : 1);
        for (int64_t unit = params_.ith; unit < n_units; unit = ggml_threadpool_chunk_add(params_.threadpool, 1)) {
            if (leaving::is_to_leave()) {
                leaving::take_all(params_.threadpool);
                break;
            }
            if (division_.apart()) {
                // The last block, which is rarely a whole one, comes last: the threads end together.
                compute_apart(division_.item(unit % division_.n_items()), unit / division_.n_items());
            } else {
                compute(division_.item(unit));
            }
        }
        if (division_.apart()) {
            ggml_barrier(params_.threadpool);
            merge_all();
        }
    }

  private:
    // The work buffer from its first whole cache line on, and how many numbers fit into it.
    static float * buffer_of(const ggml_compute_params & params) {
        const std::uintptr_t line = Scratch::LINE * sizeof(float);
        const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(params.wdata);
        return reinterpret_cast<float *>((begin + line - 1) / line * line);
    }
    static int64_t floats_of(const ggml_compute_params & params) {
        return static_cast<int64_t>(params.wsize / sizeof(float)) - Scratch::LINE;
    }

    // Where ALiBi bends the mask; 1 elsewhere.
    float slope(int64_t head) const {
        if (max_bias_ <= 0.0F) {
            return 1.0F;
        }
        const auto n_log2 = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(shape_.n_heads))));
        const float first = powf(2.0F, -max_bias_ / static_cast<float>(n_log2));
        const float second = powf(2.0F, -max_bias_ / 2.0F / static_cast<float>(n_log2));
        return head < n_log2 ? powf(first, static_cast<float>(head + 1))
                             : powf(second, static_cast<float>(2 * (head - n_log2) + 1));
    }

    const ggml_fp16_t * mask_row(const Item & item, int64_t row) const {
        const std::size_t at = static_cast<std::size_t>(item.query_of(row)) * mask_->nb[1] +
                               static_cast<std::size_t>(item.head_of(row) % mask_->ne[2]) * mask_->nb[2] +
                               static_cast<std::size_t>(item.stream % mask_->ne[3]) * mask_->nb[3];
        return reinterpret_cast<const ggml_fp16_t *>(static_cast<const char *>(mask_->data) + at);
    }

    // All blocks of it, merged and written.
    void compute(const Item & item) const {
        Sums sums[MAX_ROWS];
        read_queries(item);
        for (int64_t row = 0; row < item.n_rows(); ++row) {
            clear_sums(merged(row));
        }
        for (int64_t block = 0; block < shape_.n_blocks; ++block) {
            if (leaving::is_to_leave()) {
                return; // and `run` leaves the others
            }
            if (compute_block(item, block, sums)) {
                for (int64_t row = 0; row < item.n_rows(); ++row) {
                    merge(merged(row), sums[row], scratch_.block + row * shape_.dv, shape_.dv);
                }
            }
        }
        for (int64_t row = 0; row < item.n_rows(); ++row) {
            write(merged(row), item.head_of(row), item.query_of(row), item.stream);
        }
    }

    // One block of it, which `merge_all` takes.
    void compute_apart(const Item & item, int64_t block) const {
        Sums sums[MAX_ROWS];
        read_queries(item);
        const bool sees_any = compute_block(item, block, sums);
        for (int64_t row = 0; row < item.n_rows(); ++row) {
            const int64_t place =
                (item.stream * shape_.n_queries + item.query_of(row)) * shape_.n_heads + item.head_of(row);
            float * partial = partial_of(place, block);
            *reinterpret_cast<Sums *>(partial) = sees_any ? sums[row] : Sums{NOTHING, 0.0F};
            if (sees_any) {
                std::memcpy(partial + SUMS, scratch_.block + row * shape_.dv,
                            static_cast<std::size_t>(shape_.dv) * sizeof(float));
            }
        }
    }

    void merge_all() const {
        const int64_t n_places = shape_.n_streams * shape_.n_queries * shape_.n_heads;
        for (int64_t place = params_.ith; place < n_places; place += params_.nth) {
            clear_sums(scratch_.merged);
            for (int64_t block = 0; block < shape_.n_blocks; ++block) {
                const float * partial = partial_of(place, block);
                merge(scratch_.merged, *reinterpret_cast<const Sums *>(partial), partial + SUMS, shape_.dv);
            }
            const int64_t row = place / shape_.n_heads;
            write(scratch_.merged, place % shape_.n_heads, row % shape_.n_queries, row / shape_.n_queries);
        }
    }

    float * merged(int64_t row) const { return scratch_.merged + row * (SUMS + shape_.dv); }

    // Where the sums of a block lie; a place is a head of a query of a stream.
    float * partial_of(int64_t place, int64_t block) const {
        return partials_ + (place * shape_.n_blocks + block) * (SUMS + shape_.dv);
    }

    void clear_sums(float * sums) const {
        std::memset(sums, 0, static_cast<std::size_t>(SUMS + shape_.dv) * sizeof(float));
        reinterpret_cast<Sums *>(sums)->maximum = NOTHING;
    }

    void read_queries(const Item & item) const {
        for (int64_t row = 0; row < item.n_rows(); ++row) {
            const char * query = static_cast<const char *>(q_.data) +
                                 static_cast<std::size_t>(item.query_of(row)) * q_.nb[1] +
                                 static_cast<std::size_t>(item.head_of(row)) * q_.nb[2] +
                                 static_cast<std::size_t>(item.stream) * q_.nb[3];
            std::memcpy(scratch_.queries + row * shape_.dk, query, static_cast<std::size_t>(shape_.dk) * sizeof(float));
        }
    }

    // Returns whether any row sees any cell of it. One function for both ways of merging, as `merge` is.
    [[gnu::noinline]] bool compute_block(const Item & item, int64_t block, Sums * sums) const {
        bool sees_any = false;
        const int64_t end = std::min((block + 1) * BLOCK, k_.ne[1]);
        for (int64_t first = block * BLOCK; first < end; first += TILE) {
            const int64_t n_cells = std::min(TILE, end - first);
            if (!is_visible(item, first, n_cells)) {
                continue;
            }
            if (!sees_any) {
                std::fill_n(sums, item.n_rows(), Sums{NOTHING, 0.0F});
                std::memset(scratch_.block, 0, static_cast<std::size_t>(item.n_rows() * shape_.dv) * sizeof(float));
                sees_any = true;
            }
            compute_tile(item, first, n_cells, sums);
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

    void compute_tile(const Item & item, int64_t first, int64_t n_cells, Sums * sums) const {
        read_keys(scratch_.keys, cell(k_, item, first), k_.nb[1], k_.type, n_cells, shape_.dk);
        prefetch(cell(v_, item, first), v_.nb[1], n_cells, ggml_row_size(v_.type, shape_.dv));
        const int64_t n_rows = item.n_rows();
        std::memset(scratch_.weights, 0, static_cast<std::size_t>(n_rows * TILE) * sizeof(float));
        multiply(scratch_.weights, scratch_.queries, Wide{scratch_.keys, TILE}, n_rows, shape_.dk, shape_.dk, TILE);
        for (int64_t row = 0; row < n_rows; ++row) {
            weigh(item, row, first, n_cells, sums[row]);
        }
        add_values(cell(v_, item, first), n_cells, n_rows);
        const int64_t n_next = std::min(TILE, k_.ne[1] - first - TILE);
        prefetch(cell(k_, item, first + TILE), k_.nb[1], n_next, ggml_row_size(k_.type, shape_.dk));
    }

    // For rows that are multiplied at once, values are widened where they are used: written down for them, they would
    // take the keys out of the nearest cache.
    void add_values(const char * cells, int64_t n_cells, int64_t n_rows) const {
#if defined(__AVX2__) && defined(__F16C__)
        if (v_.type == GGML_TYPE_F16 && n_rows <= ROWS_AT_ONCE) {
            const Halves values{cells, v_.nb[1]};
            return multiply(scratch_.block, scratch_.weights, values, n_rows, n_cells, TILE, shape_.dv);
        }
#endif
        read_values(scratch_.values, cells, v_.nb[1], v_.type, n_cells, shape_.dv);
        const Wide values{scratch_.values, shape_.dv};
        multiply(scratch_.block, scratch_.weights, values, n_rows, TILE, TILE, shape_.dv);
    }

    const char * cell(const ggml_tensor & cells, const Item & item, int64_t number) const {
        const int64_t head = item.key_head / (shape_.n_key_heads / cells.ne[2]);
        const int64_t stream = item.stream / (shape_.n_streams / cells.ne[3]);
        return static_cast<const char *>(cells.data) + static_cast<std::size_t>(number) * cells.nb[1] +
               static_cast<std::size_t>(head) * cells.nb[2] + static_cast<std::size_t>(stream) * cells.nb[3];
    }

    // From scores to weights, with the maximum so far.
    void weigh(const Item & item, int64_t row, int64_t first, int64_t n_cells, Sums & sums) const {
        float * weights = scratch_.weights + row * TILE;
        ggml_vec_scale_f32(TILE, weights, scale_);
        if (softcap_ != 0.0F) {
            ggml_vec_tanh_f32(TILE, weights, weights);
            ggml_vec_scale_f32(TILE, weights, softcap_);
        }
        std::fill(weights + n_cells, weights + TILE, NOTHING);
        if (mask_ != nullptr) {
            ggml_cpu_fp16_to_fp32(mask_row(item, row) + first, scratch_.mask, n_cells);
            std::fill(scratch_.mask + n_cells, scratch_.mask + TILE, 0.0F);
            const float bend = slope(item.head_of(row));
            for (int64_t i = 0; i < TILE; ++i) {
                weights[i] += bend * scratch_.mask[i];
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
            ggml_vec_scale_f32(static_cast<int>(shape_.dv), scratch_.block + row * shape_.dv, share);
            sums = {maximum, sums.sum * share};
        }
        sums.sum += static_cast<float>(ggml_vec_soft_max_f32(TILE, weights, weights, sums.maximum));
    }

    [[gnu::noinline]] void write(float * merged, int64_t head, int64_t query, int64_t stream) const {
        const Sums & sums = *reinterpret_cast<const Sums *>(merged);
        float * values = merged + SUMS;
        float all = sums.sum;
        if (sinks_ != nullptr) {
            const float sink = static_cast<const float *>(sinks_->data)[head];
            const float maximum = std::max(sums.maximum, sink);
            const float share = expf(sums.maximum - maximum);
            ggml_vec_scale_f32(static_cast<int>(shape_.dv), values, share);
            all = all * share + expf(sink - maximum);
        }
        ggml_vec_scale_f32(static_cast<int>(shape_.dv), values, all == 0.0F ? 0.0F : 1.0F / all);
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
    Shape shape_;
    Division division_;
    Scratch scratch_; // this thread's
    float * partials_; // of all threads, behind their scratches
    float scale_ = 1.0F;
    float softcap_ = 0.0F;
    float max_bias_ = 0.0F;
};

} // namespace
