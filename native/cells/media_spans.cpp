#include "cells/media_spans.hpp"

#include "platform/errors.hpp"

#include <algorithm>

namespace pyllmcancel {

MediaSpans::MediaSpans(const std::vector<MediaInput> & inputs, const std::vector<llama_token> & tokens) {
    int32_t end = 0; // of the last run
    for (const MediaInput & input : inputs) {
        const auto & layout = input.chunk->layout();
        if (input.start < end || input.start + layout->n_tokens > static_cast<int32_t>(tokens.size())) {
            throw UsageError("the pictures of a prompt lie one after another in it");
        }
        for (int32_t row = 0; row < layout->n_tokens; ++row) {
            if (tokens[static_cast<std::size_t>(input.start + row)] != layout->token(row)) {
                throw UsageError("a picture's tokens are not where it is");
            }
        }
        spans_.push_back({input.start, layout});
        end = spans_.back().end();
    }
}

llama_pos MediaSpans::position(int32_t n) const noexcept {
    llama_pos pos = n;
    for (const MediaSpan & span : spans_) {
        if (span.end() <= n) {
            pos -= span.layout->n_tokens - span.layout->n_pos;
        } else if (span.start < n && !span.layout->is_divisible()) {
            pos -= n - span.start; // its rows begin at one position
        }
    }
    return pos;
}

int32_t MediaSpans::whole(int32_t n) const noexcept {
    const MediaSpan * span = divides(n) ? at(n) : nullptr;
    return span && !span->layout->is_divisible() ? span->start : n;
}

const MediaSpan * MediaSpans::at(int32_t n) const noexcept {
    const auto found = std::find_if(spans_.begin(), spans_.end(),
                                    [n](const MediaSpan & span) { return span.start <= n && n < span.end(); });
    return found == spans_.end() ? nullptr : &*found;
}

bool MediaSpans::divides(int32_t n) const noexcept {
    const MediaSpan * span = at(n);
    return span && span->start < n;
}

int32_t MediaSpans::uniform(int32_t n, int32_t limit) const noexcept {
    for (const MediaSpan & span : spans_) {
        if (span.start > n) {
            return std::min(limit, span.start - n);
        }
        if (n < span.end()) {
            return std::min(limit, span.end() - n);
        }
    }
    return limit;
}

MediaSpans MediaSpans::of_prefix(int32_t n) const {
    MediaSpans prefix;
    std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(prefix.spans_),
                 [n](const MediaSpan & span) { return span.start < n; });
    return prefix;
}

} // namespace pyllmcancel
