// libFuzzer's entry: the file of a sound, as the core decodes it after its length was measured.

#include "media/sound_file.hpp"
#include "platform/errors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

struct mtmd_bitmap {
    std::vector<float> samples;
};

mtmd_bitmap * mtmd_bitmap_init_from_audio(std::size_t n_samples, const float * data) {
    return new mtmd_bitmap{{data, data + n_samples}};
}

void mtmd_bitmap_free(mtmd_bitmap * bitmap) { delete bitmap; }

namespace {

constexpr int RATE = 16'000;
constexpr double MOST_SECONDS = 60.0; // less than the server's limit, so that an input takes no second
constexpr double LEAST_MP3_BYTES = 1000; // a second

uint64_t number(std::string_view file, std::size_t at, int n_bytes, bool big = false) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; ++i) {
        const auto byte = static_cast<unsigned char>(file[at + static_cast<std::size_t>(big ? i : n_bytes - 1 - i)]);
        value = value << 8 | byte;
    }
    return value;
}

// As `pyllmcancel.media.sounds` measures them; 0 for a file that is refused.
double wav_seconds(std::string_view file) {
    double frame = 0;
    double rate = 0;
    for (std::size_t at = 12; at + 8 <= file.size();) {
        const std::string_view kind = file.substr(at, 4);
        const uint64_t size = number(file, at + 4, 4);
        at += 8;
        if (kind == "fmt ") {
            if (at + 16 > file.size()) {
                return 0;
            }
            const uint64_t bytes = number(file, at + 12, 2);
            if (bytes != number(file, at + 2, 2) * ((number(file, at + 14, 2) + 7) / 8)) {
                return 0;
            }
            frame = static_cast<double>(bytes);
            rate = static_cast<double>(number(file, at + 4, 4));
        } else if (kind == "data") {
            return frame > 0 && rate > 0 && size <= file.size() - at ? static_cast<double>(size) / frame / rate : 0;
        }
        at += size + size % 2;
    }
    return 0;
}

double longest_seconds(std::string_view file) {
    if (file.substr(0, 4) == "RIFF" && file.size() >= 12 && file.substr(8, 4) == "WAVE") {
        return wav_seconds(file);
    }
    if (file.substr(0, 4) == "fLaC" && file.size() >= 26) {
        const uint64_t packed = number(file, 18, 8, true);
        const auto rate = static_cast<double>(packed >> 44);
        return rate > 0 ? static_cast<double>(packed & ((uint64_t(1) << 36) - 1)) / rate : 0;
    }
    const bool is_frame = file.size() > 1 && file[0] == '\xff' && (file[1] & 0xe0) == 0xe0;
    return is_frame || file.substr(0, 3) == "ID3" ? static_cast<double>(file.size()) / LEAST_MP3_BYTES : 0;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char *>(data), size);
    const double seconds = longest_seconds(file);
    if (seconds <= 0 || seconds > MOST_SECONDS) {
        return 0;
    }
    const pyllmcancel::CancelFlag flag;
    try {
        const pyllmcancel::BitmapOwner bitmap = pyllmcancel::read_sound(file, RATE, flag, /* seconds */ 10.0);
        if (bitmap->samples.size() > RATE * std::size_t(3600)) {
            std::abort(); // more than the core's own limit
        }
    } catch (const pyllmcancel::UsageError &) {
    }
    return 0;
}
