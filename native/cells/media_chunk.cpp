#include "cells/media_chunk.hpp"

namespace pyllmcancel {
namespace {

constexpr std::size_t MROPE_SECTIONS = 4;

} // namespace

std::vector<llama_pos> MediaLayout::positions(llama_pos begin, int32_t row, int32_t n_rows) const {
    const auto count = static_cast<std::size_t>(n_rows);
    const mtmd_image_tokens * image = mtmd_input_chunk_get_tokens_image(shape.get());
    std::vector<llama_pos> positions(is_mrope ? MROPE_SECTIONS * count : count);
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(row) + i;
        positions[i] = begin + static_cast<llama_pos>(at);
        if (is_mrope && image) {
            const mtmd_decoder_pos pos = mtmd_image_tokens_get_decoder_pos(image, begin, at);
            positions[i] = static_cast<llama_pos>(pos.t);
            positions[count + i] = static_cast<llama_pos>(pos.y);
            positions[2 * count + i] = static_cast<llama_pos>(pos.x);
            positions[3 * count + i] = static_cast<llama_pos>(pos.z);
        } else if (is_mrope) { // a sound
            positions[count + i] = positions[2 * count + i] = positions[i];
        }
    }
    return positions;
}

MediaChunk::MediaChunk(MediaLayout layout, std::shared_ptr<const mtmd_input_chunk> content, std::size_t content_bytes)
    : layout_(std::make_shared<const MediaLayout>(std::move(layout))), content_(std::move(content)),
      content_bytes_(content_bytes) {}

std::shared_ptr<const mtmd_input_chunk> MediaChunk::content() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return content_;
}

std::shared_ptr<const MediaRows> MediaChunk::rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_;
}

void MediaChunk::set_rows(MediaRows rows) {
    auto kept = std::make_shared<const MediaRows>(std::move(rows));
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_ = std::move(kept);
    content_.reset();
}

std::size_t MediaChunk::n_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_ ? rows_->size() * sizeof(float) : content_bytes_;
}

} // namespace pyllmcancel
