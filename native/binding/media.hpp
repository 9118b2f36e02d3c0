#pragma once

#include "media/image_file.hpp"
#include "media/media_encoder.hpp"

namespace pyllmcancel {

// Calls with types that Cython does not have: views of bytes, and values that may be missing. Without a `first` it is 0.

inline std::unique_ptr<MediaEncoder> make_media_encoder(std::shared_ptr<Model> model, const std::string & path,
                                                        const MediaParams & params) {
    return std::make_unique<MediaEncoder>(std::move(model), path, params);
}

inline std::vector<MediaPart> parts_of(MediaEncoder & encoder, const char * data, std::size_t size, bool is_audio,
                                       llama_token first, const CancelFlag & flag, double seconds) {
    return encoder.parts({data, size}, is_audio, first < 0 ? std::optional<llama_token>(first) : std::nullopt, flag,
                         seconds);
}

inline bool size_of_image(const char * data, std::size_t size, int32_t * width, int32_t * height) {
    const auto found = image_size({data, size});
    if (found) {
        *width = found->first;
        *height = found->second;
    }
    return found.has_value();
}

inline std::shared_ptr<Audience> make_audience() { return std::make_shared<Audience>(); }

} // namespace pyllmcancel
