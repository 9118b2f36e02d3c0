#include "logits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

namespace pyllmcancel {
namespace {

constexpr int32_t BLOCK = 64;
constexpr int32_t LANES = 16; // independent of each other, so that the compiler may compute them side by side

struct Extremes {
    float min;
    float max;
    bool has_nan;
};

Extremes extremes(const float * data, int32_t length) {
    Extremes found{data[0], data[0], false};
    for (int32_t i = 0; i < length; ++i) {
        found.has_nan |= data[i] != data[i];
        found.min = std::min(found.min, data[i]);
        found.max = std::max(found.max, data[i]);
    }
    return found;
}

Extremes extremes_of_block(const float * data) {
    std::array<float, LANES> low;
    std::array<float, LANES> high;
    std::array<int32_t, LANES> nan{};
    std::copy_n(data, LANES, low.begin());
    std::copy_n(data, LANES, high.begin());
    for (int32_t i = 0; i < BLOCK; i += LANES) {
        for (int32_t lane = 0; lane < LANES; ++lane) {
            const float value = data[i + lane];
            nan[lane] |= value != value ? 1 : 0;
            low[lane] = value < low[lane] ? value : low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
        }
    }
    Extremes found{low[0], high[0], false};
    for (int32_t lane = 0; lane < LANES; ++lane) {
        found.has_nan |= nan[lane] != 0;
        found.min = std::min(found.min, low[lane]);
        found.max = std::max(found.max, high[lane]);
    }
    return found;
}

} // namespace

Logits::Logits(const float * data, int32_t n_vocab) : data_(data), n_vocab_(n_vocab), max_(-INFINITY) {
    block_max_.reserve(static_cast<std::size_t>(n_vocab / BLOCK + 1));
    float min = INFINITY;
    bool has_nan = false;
    for (int32_t begin = 0; begin < n_vocab; begin += BLOCK) {
        const int32_t length = std::min(BLOCK, n_vocab - begin);
        const Extremes block = length == BLOCK ? extremes_of_block(data + begin) : extremes(data + begin, length);
        block_max_.push_back(block.max);
        has_nan |= block.has_nan;
        min = std::min(min, block.min);
        max_ = std::max(max_, block.max);
    }
    if (has_nan || !std::isfinite(max_)) {
        fault_ = LogitFault::not_finite;
    } else if (min == max_ && n_vocab > 1) {
        fault_ = LogitFault::all_equal;
    }
}

llama_token Logits::likeliest() const {
    const auto block = std::max_element(block_max_.begin(), block_max_.end()) - block_max_.begin();
    const float * begin = data_ + block * BLOCK;
    return static_cast<llama_token>(std::find(begin, data_ + n_vocab_, max_) - data_);
}

// The count-th largest of the blocks' maxima is exceeded or equalled by at least `count` logits, so that whatever is
// below it is not among the `count` largest.
std::vector<llama_token> Logits::likeliest(int32_t count) const {
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
    std::vector<llama_token> tokens = likeliest(std::max(count, 1));
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
