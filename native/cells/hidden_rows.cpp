#include "cells/hidden_rows.hpp"

#include <algorithm>

namespace pyllmcancel {

std::size_t HiddenRows::place(int32_t token) const noexcept {
    return static_cast<std::size_t>(token % limit_) * width_;
}

const float * HiddenRows::at(int32_t token) const noexcept {
    return token >= begin_ && token < end_ ? rows_.data() + place(token) : nullptr;
}

void HiddenRows::put(int32_t token, const float * row, std::size_t width, int32_t limit) {
    if (rows_.empty()) {
        width_ = width;
        limit_ = limit;
        rows_.resize(static_cast<std::size_t>(limit) * width);
    }
    if (token != end_) {
        begin_ = token;
    }
    float * to = rows_.data() + place(token);
    if (row) {
        std::copy_n(row, width_, to);
    } else {
        std::fill_n(to, width_, 0.0f);
    }
    end_ = token + 1;
    begin_ = std::max(begin_, end_ - limit_);
}

void HiddenRows::truncate(int32_t n_tokens) noexcept {
    end_ = std::min(end_, n_tokens);
    begin_ = std::min(begin_, end_);
}

} // namespace pyllmcancel
