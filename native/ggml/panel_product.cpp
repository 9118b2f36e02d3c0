// The division of a product among threads; panel_tiles.hpp has the arithmetic.

#include "ggml/panel_product.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "ggml/leaving.hpp"
#include "ggml/panel_tiles.hpp"

#include <algorithm>

namespace panels {
namespace {

constexpr int64_t CACHED_BYTES = 192 * 1024; // of activations, which stay in a core's cache while panels pass
constexpr int64_t JOBS_OF_THREAD = 4;        // so that a thread which is held up does not hold up the others
constexpr int64_t MAX_PANELS_OF_JOB = 8;     // and so that a thread that is to leave leaves soon
// Activations that each thread quantizes for itself, since that takes less time than waiting for the others.
constexpr int64_t OWN_ELEMENTS = 4096;
constexpr int64_t OWN_PANELS = 2048; // of a larger matrix the waiting does not matter
constexpr std::size_t ALIGNMENT = 64;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::size_t aligned(std::size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// -- one type --------------------------------------------------------------------------------------------------------

template <class Block> void fill(void * panels, const void * rows, int64_t n_rows, int64_t n_blocks) {
    auto * panel = static_cast<Panel<Block> *>(panels);
    const auto * block = static_cast<const Block *>(rows);
    for (int64_t first = 0; first < n_rows; first += ROWS, panel += n_blocks) {
        std::memset(panel, 0, sizeof(*panel) * n_blocks); // the rows that the last panel lacks
        for (int64_t row = first; row < std::min(n_rows, first + ROWS); ++row) {
            for (int64_t i = 0; i < n_blocks; ++i) {
                panel[i].set(static_cast<int>(row - first), block[row * n_blocks + i]);
            }
        }
    }
}

template <class Block> void quantize_blocks(void * to, const float * x, int64_t n_blocks) {
    auto * blocks = static_cast<Activations<Block> *>(to);
    for (int64_t i = 0; i < n_blocks; ++i) {
        quantize<Codes<Block>::OFFSET>(blocks[i], x + i * BLOCK_SIZE<Block>);
    }
}

void store(float * to, __m256 results, int64_t n) {
    if (n >= ROWS) {
        _mm256_storeu_ps(to, results);
        return;
    }
    float lanes[ROWS];
    _mm256_storeu_ps(lanes, results);
    std::copy_n(lanes, n, to);
}

template <class Block, int COUNT>
void multiply_tile(const Panel<Block> * panel, int64_t n_blocks, const Row * rows, int64_t row_of_weights,
                   int64_t n_weights) {
    __m256 results[COUNT];
    multiply<Block>(panel, n_blocks, rows, results);
    for (int i = 0; i < COUNT; ++i) {
        store(rows[i].y + row_of_weights, results[i], n_weights - row_of_weights);
    }
}

template <class Block>
void multiply_panels(const void * panels, int64_t n_blocks, int64_t first, int64_t last, int64_t n_weights,
                     const Row * rows, int64_t n_rows) {
    for (int64_t i = first; i < last; ++i) {
        const auto * panel = static_cast<const Panel<Block> *>(panels) + i * n_blocks;
        int64_t row = 0;
        for (; row + 4 <= n_rows; row += 4) {
            multiply_tile<Block, 4>(panel, n_blocks, rows + row, i * ROWS, n_weights);
        }
        switch (n_rows - row) {
            case 3: multiply_tile<Block, 3>(panel, n_blocks, rows + row, i * ROWS, n_weights); break;
            case 2: multiply_tile<Block, 2>(panel, n_blocks, rows + row, i * ROWS, n_weights); break;
            case 1: multiply_tile<Block, 1>(panel, n_blocks, rows + row, i * ROWS, n_weights); break;
            default: break;
        }
    }
}

template <class Block>
constexpr Format FORMAT = {sizeof(Panel<Block>), sizeof(Activations<Block>), BLOCK_SIZE<Block>,
                           fill<Block>,          quantize_blocks<Block>,     multiply_panels<Block>};

// -- a product -------------------------------------------------------------------------------------------------------

// The rows that one matrix is multiplied by: all, or those of an expert.
struct Share {
    int64_t begin;
    int64_t end;
};

// The shapes of a product, and where its parts lie.
class Product {
  public:
    Product(const Format & format, const ggml_tensor & product)
        : format_(format), weights_(*product.src[0]), x_(*product.src[1]), ids_(product.src[2]), y_(product) {}

    int64_t n_blocks() const { return weights_.ne[0] / format_.block_size; }
    int64_t n_panels() const { return divided_up(weights_.ne[1], ROWS); }
    int64_t n_matrices() const { return ids_ ? weights_.ne[2] : 1; }
    int64_t n_x() const { return ggml_nrows(&x_); }
    int64_t n_rows() const { return ggml_nrows(&y_); }
    std::size_t size_of_x() const { return n_blocks() * format_.activation_size; }
    bool is_small() const { return !ids_ && n_x() * weights_.ne[0] <= OWN_ELEMENTS && n_panels() <= OWN_PANELS; }

    // The parts of work memory, in this order.
    std::size_t x_size() const { return aligned(n_x() * size_of_x()); }
    std::size_t rows_size() const { return aligned(n_rows() * sizeof(Row)); }
    std::size_t shares_size() const { return aligned(n_matrices() * sizeof(Share)); }
    std::size_t work_size() const { return x_size() + rows_size() + shares_size(); }

    const float * x(int64_t row) const { return reinterpret_cast<const float *>(place(x_, row)); }

    // The blocks BEGIN to END of all rows' activations, counted from the first row on.
    void quantize(char * work, int64_t begin, int64_t end) const {
        while (begin < end) {
            const int64_t row = begin / n_blocks();
            const int64_t first = begin % n_blocks();
            const int64_t n = std::min(n_blocks() - first, end - begin);
            format_.quantize(work + row * size_of_x() + first * format_.activation_size,
                             x(row) + first * format_.block_size, n);
            begin += n;
        }
    }

    // Lists the rows of each matrix.
    void list(char * work) const {
        auto * rows = reinterpret_cast<Row *>(work + x_size());
        auto * shares = reinterpret_cast<Share *>(work + x_size() + rows_size());
        if (ids_) {
            list_of_experts(work, rows, shares);
            return;
        }
        for (int64_t row = 0; row < n_rows(); ++row) {
            rows[row] = {work + row * size_of_x(), reinterpret_cast<float *>(place(y_, row))};
        }
        shares[0] = {0, n_rows()};
    }

    Share share(const char * work, int64_t matrix) const {
        return reinterpret_cast<const Share *>(work + x_size() + rows_size())[matrix];
    }

    // The panels FIRST to LAST of a matrix, times its rows. Returns false if the product is to be left.
    bool multiply(const char * work, int64_t matrix, int64_t first, int64_t last) const {
        const auto * rows = reinterpret_cast<const Row *>(work + x_size());
        const Share share = this->share(work, matrix);
        const int64_t at_once = std::max<int64_t>(4, CACHED_BYTES / size_of_x() / 4 * 4);
        const char * panels =
            static_cast<const char *>(weights_.data) + matrix * n_panels() * n_blocks() * format_.panel_size;
        for (int64_t row = share.begin; row < share.end; row += at_once) {
            if (leaving::is_to_leave()) {
                return false;
            }
            format_.multiply(panels, n_blocks(), first, last, weights_.ne[1], rows + row,
                             std::min(at_once, share.end - row));
        }
        return true;
    }

  private:
    static char * place(const ggml_tensor & tensor, int64_t row) {
        const int64_t i1 = row % tensor.ne[1];
        const int64_t i2 = row / tensor.ne[1] % tensor.ne[2];
        const int64_t i3 = row / tensor.ne[1] / tensor.ne[2];
        return static_cast<char *>(tensor.data) + i1 * tensor.nb[1] + i2 * tensor.nb[2] + i3 * tensor.nb[3];
    }

    int32_t expert(int64_t which, int64_t token) const {
        return *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids_->data) + which * ids_->nb[0] +
                                                  token * ids_->nb[1]);
    }

    // The rows sorted by their experts, and among these in the order of the tokens.
    void list_of_experts(char * work, Row * rows, Share * shares) const {
        std::fill_n(shares, n_matrices(), Share{0, 0});
        const auto each = [&](auto && f) {
            for (int64_t token = 0; token < ids_->ne[1]; ++token) {
                for (int64_t which = 0; which < ids_->ne[0]; ++which) {
                    f(which, token, shares[expert(which, token)]);
                }
            }
        };
        each([](int64_t, int64_t, Share & share) { ++share.end; });
        int64_t begin = 0;
        for (int64_t matrix = 0; matrix < n_matrices(); ++matrix) {
            const int64_t n = shares[matrix].end;
            shares[matrix] = {begin, begin};
            begin += n;
        }
        each([&](int64_t which, int64_t token, Share & share) {
            const int64_t x = which % x_.ne[1] + token * x_.ne[1];
            char * y = static_cast<char *>(y_.data) + which * y_.nb[1] + token * y_.nb[2];
            rows[share.end++] = {work + x * size_of_x(), reinterpret_cast<float *>(y)};
        });
    }

    const Format & format_;
    const ggml_tensor & weights_;
    const ggml_tensor & x_;
    const ggml_tensor * ids_;
    const ggml_tensor & y_;
};

// Each thread quantizes all activations for itself, and has its part of the panels.
void compute_small(const Product & product, const ggml_compute_params & params) {
    char * work = static_cast<char *>(params.wdata) + params.ith * product.work_size();
    product.quantize(work, 0, product.n_x() * product.n_blocks());
    product.list(work);
    const int64_t n = product.n_panels();
    product.multiply(work, 0, n * params.ith / params.nth, n * (params.ith + 1) / params.nth);
}

// The threads share the activations, and take the jobs as they come: some panels of one matrix.
void compute_in_jobs(const Product & product, const ggml_compute_params & params) {
    char * work = static_cast<char *>(params.wdata);
    const int64_t n = product.n_x() * product.n_blocks();
    product.quantize(work, n * params.ith / params.nth, n * (params.ith + 1) / params.nth);
    if (params.ith == 0) {
        product.list(work);
        ggml_threadpool_chunk_set(params.threadpool, params.nth);
    }
    ggml_barrier(params.threadpool);
    const int64_t of_job =
        std::clamp<int64_t>(product.n_panels() / (params.nth * JOBS_OF_THREAD), 1, MAX_PANELS_OF_JOB);
    const int64_t jobs_of_matrix = divided_up(product.n_panels(), of_job);
    // The jobs of a matrix that has rows follow those of the one before it. A thread's jobs only rise.
    int64_t job = params.ith;
    int64_t first_job = 0;
    for (int64_t matrix = 0; matrix < product.n_matrices(); ++matrix) {
        const Share share = product.share(work, matrix);
        if (share.begin == share.end) {
            continue;
        }
        for (; job < first_job + jobs_of_matrix; job = ggml_threadpool_chunk_add(params.threadpool, 1)) {
            const int64_t first = (job - first_job) * of_job;
            if (!product.multiply(work, matrix, first, std::min(product.n_panels(), first + of_job))) {
                leaving::take_all(params.threadpool);
                return;
            }
        }
        first_job += jobs_of_matrix;
    }
}

} // namespace

const Format * format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return &FORMAT<block_q4_0>;
        case GGML_TYPE_Q4_1: return &FORMAT<block_q4_1>;
        case GGML_TYPE_Q5_0: return &FORMAT<block_q5_0>;
        case GGML_TYPE_Q5_1: return &FORMAT<block_q5_1>;
        case GGML_TYPE_Q8_0: return &FORMAT<block_q8_0>;
        case GGML_TYPE_IQ4_NL: return &FORMAT<block_iq4_nl>;
        case GGML_TYPE_MXFP4: return &FORMAT<block_mxfp4>;
        case GGML_TYPE_Q4_K: return &FORMAT<block_q4_K>;
        case GGML_TYPE_Q5_K: return &FORMAT<block_q5_K>;
        case GGML_TYPE_Q6_K: return &FORMAT<block_q6_K>;
        case GGML_TYPE_IQ4_XS: return &FORMAT<block_iq4_xs>;
        default: return nullptr;
    }
}

std::size_t size_of_panels(const Format & format, const ggml_tensor & weights) {
    return divided_up(weights.ne[1], ROWS) * weights.ne[2] * weights.ne[3] * (weights.ne[0] / format.block_size) *
           format.panel_size;
}

std::size_t work_size(const Format & format, int n_threads, const ggml_tensor & product) {
    const Product of(format, product);
    return of.work_size() * (of.is_small() ? n_threads : 1);
}

void compute(const Format & format, const ggml_compute_params & params, ggml_tensor & product) {
    GGML_ASSERT(product.src[1]->nb[0] == sizeof(float) && product.nb[0] == sizeof(float));
    GGML_ASSERT(params.wsize >= work_size(format, params.nth, product));
    const Product of(format, product);
    if (of.is_small()) {
        compute_small(of, params);
    } else {
        compute_in_jobs(of, params);
    }
}

} // namespace panels

#else

namespace panels {

const Format * format_of(ggml_type) { return nullptr; }

std::size_t size_of_panels(const Format &, const ggml_tensor &) { return 0; }

std::size_t work_size(const Format &, int, const ggml_tensor &) { return 0; }

void compute(const Format &, const ggml_compute_params &, ggml_tensor &) {}

} // namespace panels

#endif
