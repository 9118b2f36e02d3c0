#include "media/sound_file.hpp"

// llama.cpp's mtmd-helper.cpp, which is not compiled, would decode a file in one go.
#define MINIAUDIO_IMPLEMENTATION
#define MA_NO_DEVICE_IO
#define MA_NO_ENCODING
#define MA_NO_ENGINE
#define MA_NO_GENERATION
#define MA_NO_NODE_GRAPH
#define MA_NO_RESOURCE_MANAGER
#define MA_API static
// The one symbol that is not static: the linker would find it twice.
#define ma_atomic_global_lock pyllmcancel_ma_atomic_global_lock
#include "miniaudio/miniaudio.h"

#include <vector>

namespace pyllmcancel {
namespace {

constexpr ma_uint64 PIECE = 1 << 14; // samples between two looks at the limit: a second, or half of one
constexpr std::size_t MOST_SECONDS =
    3600; // whatever the header has said: a FLAC goes on behind the length that it names

struct CloseDecoder {
    void operator()(ma_decoder * decoder) const noexcept { ma_decoder_uninit(decoder); }
};

} // namespace

BitmapOwner read_sound(std::string_view file, int32_t rate, const CancelFlag & flag, double seconds) {
    if (rate < 1) {
        throw UsageError("the projector takes no sound");
    }
    ma_decoder decoder;
    const ma_decoder_config config = ma_decoder_config_init(ma_format_f32, 1, static_cast<ma_uint32>(rate));
    if (ma_decoder_init_memory(file.data(), file.size(), &config, &decoder) != MA_SUCCESS) {
        throw UsageError("it cannot be decoded: it is no WAV, MP3 or FLAC");
    }
    const std::unique_ptr<ma_decoder, CloseDecoder> open(&decoder);
    DecodingLimit limit(flag, seconds);
    std::vector<float> samples;
    ma_uint64 n_read = PIECE;
    // A piece that is not full is the last one.
    for (std::size_t done = 0; n_read == PIECE && !limit.is_over(); done += static_cast<std::size_t>(n_read)) {
        samples.resize(done + PIECE);
        ma_decoder_read_pcm_frames(&decoder, samples.data() + done, PIECE, &n_read);
        samples.resize(done + static_cast<std::size_t>(n_read));
        if (samples.size() > MOST_SECONDS * static_cast<std::size_t>(rate)) {
            throw UsageError("it is longer than an hour");
        }
    }
    limit.check();
    if (samples.empty()) {
        throw UsageError("it cannot be decoded: it has no samples");
    }
    return BitmapOwner(mtmd_bitmap_init_from_audio(samples.size(), samples.data()));
}

} // namespace pyllmcancel
