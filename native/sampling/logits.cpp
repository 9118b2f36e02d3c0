#include "sampling/logits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

namespace pyllmcancel {
namespace {

constexpr int32_t BLOCK = 64;
constexpr int32_t LANES = 16; // independent of each other, so that the compiler vectorizes them
using Lanes = std::array<float, LANES>;

// The state of a whole row, by lane: reducing lanes costs as much as reading a block, so only the maximum is reduced
// for each block.
struct RowState {
    Lanes low;
    std::array<int32_t, LANES> nan{};
};

float max_of(Lanes & lanes) {
    for (int32_t width = LANES / 2; width > 0; width /= 2) {
        for (int32_t lane = 0; lane < width; ++lane) {
            lanes[lane] = lanes[lane + width] > lanes[lane] ? lanes[lane + width] : lanes[lane];
        }
    }
    return lanes[0];
}

float block_max(const float * data, RowState & row) {
    Lanes high;
    std::copy_n(data, LANES, high.begin());
    for (int32_t i = 0; i < BLOCK; i += LANES) {
        for (int32_t lane = 0; lane < LANES; ++lane) {
            const float value = data[i + lane];
            row.nan[lane] |= value != value ? 1 : 0;
            row.low[lane] = value < row.low[lane] ? value : row.low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
        }
    }
    return max_of(high);
}

float rest_max(const float * data, int32_t length, RowState & row) {
    float high = data[0];
    for (int32_t i = 0; i < length; ++i) {
        row.nan[0] |= data[i] != data[i] ? 1 : 0;
        row.low[0] = std::min(row.low[0], data[i]);
        high = std::max(high, data[i]);
    }
    return high;
}

} // namespace

Logits::Logits(const float * data, int32_t n_vocab) : data_(data), n_vocab_(n_vocab), max_(-INFINITY) {
    block_max_.reserve(static_cast<std::size_t>(n_vocab / BLOCK + 1));
    RowState row;
    row.low.fill(INFINITY);
    for (int32_t begin = 0; begin < n_vocab; begin += BLOCK) {
        const int32_t length = std::min(BLOCK, n_vocab - begin);
        block_max_.push_back(length == BLOCK ? block_max(data + begin, row) : rest_max(data + begin, length, row));
        max_ = std::max(max_, block_max_.back());
    }
    const float min = *std::min_element(row.low.begin(), row.low.end());
    const bool has_nan = std::any_of(row.nan.begin(), row.nan.end(), [](int32_t nan) { return nan != 0; });
    if (has_nan || !std::isfinite(max_)) {
        fault_ = LogitFault::not_finite;
    } else if (min == max_ && n_vocab > 1) {
        fault_ = LogitFault::all_equal;
    }
}

llama_token Logits::argmax() const {
    const auto block = std::max_element(block_max_.begin(), block_max_.end()) - block_max_.begin();
    const float * begin = data_ + block * BLOCK;
    return static_cast<llama_token>(std::find(begin, data_ + n_vocab_, max_) - data_);
}

// At least `count` logits are as large as the count-th largest of the blocks' maxima, so what is smaller is not among the
// `count` largest.
std::vector<llama_token> Logits::candidates(int32_t count) const {
    std::vector<llama_token> tokens;
    float least = -INFINITY;
    if (count > 0 && static_cast<std::size_t>(count) < block_max_.size()) {
        std::vector<float> maxima = block_max_;
        std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
        least = maxima[static_cast<std::size_t>(count) - 1];
    }
    for (std::size_t block = 0; block < block_max_.size(); ++block) {
        if (block_max_[block] < least) {
            continue;
        }
        const auto begin = static_cast<int32_t>(block) * BLOCK;
        for (int32_t token = begin; token < std::min(begin + BLOCK, n_vocab_); ++token) {
            if (data_[token] >= least) {
                tokens.push_back(token);
            }
        }
    }
    return tokens;
}

float Logits::log_norm() const {
    std::array<float, LANES> sums{};
    for (int32_t token = 0; token < n_vocab_; ++token) {
        sums[static_cast<std::size_t>(token % LANES)] += std::exp(data_[token] - max_);
    }
    return max_ + std::log(std::accumulate(sums.begin(), sums.end(), 0.0F));
}

std::vector<TokenLogprob> Logits::top(int32_t count, float log_norm) const {
    std::vector<llama_token> tokens = candidates(std::max(count, 1));
    const auto end = tokens.begin() + std::clamp(count, 0, static_cast<int32_t>(tokens.size()));
    std::partial_sort(tokens.begin(), end, tokens.end(), [&](llama_token a, llama_token b) {
        return data_[a] > data_[b] || (data_[a] == data_[b] && a < b);
    });
    std::vector<TokenLogprob> top;
    std::transform(tokens.begin(), end, std::back_inserter(top),
                   [&](llama_token token) { return TokenLogprob{token, data_[token] - log_norm}; });
    return top;
}

} // namespace pyllmcancel
