#include "media/media_encoder.hpp"

#include "clip.h"
#include "media/image_file.hpp"
#include "media/sound_file.hpp"
#include "mtmd.h"
#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/log.hpp"
#include "platform/platform.hpp"
#include "step/busy_guard.hpp"

#include "gguf.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace pyllmcancel {
namespace {

std::string why(const std::string & otherwise) {
    const std::string said = log_errors();
    return said.empty() ? otherwise : said;
}

// Pictures are prepared once, for any place in any prompt. These projectors count the pictures, or the tokens, before one.
constexpr const char * DEPENDS_ON_PLACE[] = {"hunyuanvl", "deepseek4v"};

// A row of the embedding stands for a square of 28 x 28 pixels, or fewer.
constexpr std::size_t CONTENT_BYTES_OF_ROW = 28 * 28 * 3 * sizeof(float);

using Keys = std::unique_ptr<gguf_context, decltype(&gguf_free)>;

Keys keys_of(const std::string & path) {
    const gguf_init_params params{/* no_alloc */ true, /* ctx */ nullptr};
    return {gguf_init_from_file(path.c_str(), params), gguf_free};
}

// Many projectors scale every picture, or every tile of one, to this size.
std::size_t image_bytes(const std::string & path) {
    const Keys file = keys_of(path);
    const int64_t found = file ? gguf_find_key(file.get(), "clip.vision.image_size") : -1;
    if (found < 0 || gguf_get_kv_type(file.get(), found) != GGUF_TYPE_UINT32) {
        return 0;
    }
    const std::size_t side = gguf_get_val_u32(file.get(), found);
    return side * side * 3 * sizeof(float);
}

void check_kind(const std::string & path) {
    const Keys file = keys_of(path);
    for (const char * key : {"clip.projector_type", "clip.vision.projector_type"}) {
        const int64_t found = file ? gguf_find_key(file.get(), key) : -1;
        if (found < 0 || gguf_get_kv_type(file.get(), found) != GGUF_TYPE_STRING) {
            continue;
        }
        const std::string kind = gguf_get_val_str(file.get(), found);
        if (std::find(std::begin(DEPENDS_ON_PLACE), std::end(DEPENDS_ON_PLACE), kind) != std::end(DEPENDS_ON_PLACE)) {
            throw ModelLoadError(path + ": projectors of the kind " + kind + " are not supported");
        }
    }
}

using Clip = std::unique_ptr<clip_ctx, decltype(&clip_free)>;

// mtmd checks this in a constructor that throws, and whose projector is then never freed: hundreds of megabytes.
void check_width(const Model & model, const std::string & path) {
    clip_context_params params{};
    params.no_alloc = true;
    const clip_init_result made = clip_init(path.c_str(), params);
    const Clip vision(made.ctx_v, clip_free);
    const Clip audio(made.ctx_a, clip_free);
    const Clip speech(made.ctx_gen_a, clip_free);
    const int32_t n_embd = llama_model_n_embd_inp(model.handle());
    for (const clip_ctx * one : {vision.get(), audio.get(), speech.get()}) {
        if (one != nullptr && clip_n_mmproj_embd(one) != n_embd) {
            throw ModelLoadError(path + ": this is not a projector for the model: its rows have " +
                                 std::to_string(clip_n_mmproj_embd(one)) + " numbers, and the model takes " +
                                 std::to_string(n_embd));
        }
    }
}

mtmd_context * load(const Model & model, const std::string & path, const MediaParams & params, EncodeGate & gate) {
    mtmd_log_set(log_callback(), nullptr);
    mtmd_context_params native = mtmd_context_params_default();
    native.use_gpu = params.offload;
    native.print_timings = false;
    native.n_threads = params.n_threads;
    native.image_min_tokens = params.image_min_tokens;
    native.image_max_tokens = params.image_max_tokens;
    native.cb_eval = EncodeGate::eval;
    native.cb_eval_user_data = &gate;
    clear_log_errors();
    const AssertionsThrow guard;
    check_kind(path);
    check_width(model, path);
    clear_log_errors();
    try {
        if (mtmd_context * made = mtmd_init_from_file(path.c_str(), model.handle(), native)) {
            return made;
        }
    } catch (const std::exception & error) {
        throw ModelLoadError(path + ": " + error.what());
    }
    throw ModelLoadError(path + ": " + why("this is not a projector for the model"));
}

std::shared_ptr<const mtmd_input_chunk> owned(mtmd_input_chunk * chunk) {
    return std::shared_ptr<const mtmd_input_chunk>(
        chunk, [](const mtmd_input_chunk * own) { mtmd_input_chunk_free(const_cast<mtmd_input_chunk *>(own)); });
}

// The vocabulary may lack what a projector puts around its pictures.
std::vector<llama_token> checked(std::vector<llama_token> tokens) {
    for (const llama_token token : tokens) {
        if (token < 0) {
            throw UsageError("the model's vocabulary lacks a token that its projector puts beside pictures");
        }
    }
    return tokens;
}

int64_t count_tokens(const Chunks & chunks, bool texts) {
    int64_t count = 0;
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
        const mtmd_input_chunk * chunk = mtmd_input_chunks_get(chunks.get(), i);
        if (texts || mtmd_input_chunk_get_type(chunk) != MTMD_INPUT_CHUNK_TYPE_TEXT) {
            count += static_cast<int64_t>(mtmd_input_chunk_get_n_tokens(chunk));
        }
    }
    return count;
}

// Makes a failed assertion of mtmd a UsageError.
template <typename Function> auto unless_asserted(const Function & function) {
    const AssertionsThrow guard;
    try {
        return function();
    } catch (const UsageError &) {
        throw;
    } catch (const std::runtime_error & error) {
        throw UsageError(std::string("it cannot be prepared: ") + error.what());
    }
}

} // namespace

MediaEncoder::MediaEncoder(std::shared_ptr<const Model> model, const std::string & path, const MediaParams & params)
    : model_(std::move(model)), owner_pid_(platform::process_id()), image_bytes_(image_bytes(path)),
      turns_(std::make_shared<Turns>()), gate_(turns_, params.every_node), mtmd_(load(*model_, path, params, gate_)) {}

MediaEncoder::~MediaEncoder() {
    if (platform::process_id() != owner_pid_) {
        (void) mtmd_.release();
    }
}

llama_token MediaEncoder::take_tokens(int64_t count) {
    const int64_t before = n_given_.fetch_add(count);
    if (before + count > std::numeric_limits<int32_t>::max()) {
        throw UsageError("no token ids are left for pictures; restart the server");
    }
    return static_cast<llama_token>(-1 - before);
}

MediaPart MediaEncoder::part(const mtmd_input_chunk * chunk, llama_token & next) const {
    std::size_t count = 0;
    const llama_token * tokens = mtmd_input_chunk_get_tokens_text(chunk, &count);
    if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
        return {checked({tokens, tokens + count}), nullptr};
    }
    const MediaLayout layout{next,
                             static_cast<int32_t>(mtmd_input_chunk_get_n_tokens(chunk)),
                             mtmd_input_chunk_get_n_pos(chunk),
                             mtmd_decode_use_non_causal(mtmd_.get(), chunk),
                             mtmd_decode_use_mrope(mtmd_.get()),
                             owned(mtmd_input_chunk_get_placeholder(chunk))};
    next -= layout.n_tokens;
    const bool is_image = mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_IMAGE;
    const auto rows_bytes = static_cast<std::size_t>(layout.n_tokens) * CONTENT_BYTES_OF_ROW;
    const std::size_t n_bytes = std::max(rows_bytes, is_image ? image_bytes_ : 0);
    return {{}, std::make_shared<MediaChunk>(layout, owned(mtmd_input_chunk_copy(chunk)), n_bytes)};
}

Chunks MediaEncoder::tokenized(const mtmd_bitmap * bitmap) const {
    Chunks chunks(mtmd_input_chunks_init(), mtmd_input_chunks_free);
    const std::string marker = mtmd_get_marker(mtmd_.get());
    const mtmd_input_text text{marker.data(), marker.size(), /* add_special */ false, /* parse_special */ true};
    clear_log_errors();
    if (mtmd_tokenize(mtmd_.get(), chunks.get(), &text, &bitmap, 1) != 0) {
        throw UsageError("it cannot be prepared: " + why("mtmd does not say why"));
    }
    return chunks;
}

std::vector<MediaPart> MediaEncoder::parts(std::string_view file, bool is_audio, std::optional<llama_token> first,
                                           const CancelFlag & flag, double seconds) {
    return unless_asserted([&] {
        const BitmapOwner bitmap =
            is_audio ? read_sound(file, sample_rate(), flag, seconds) : read_image(file, flag, seconds);
        const Chunks chunks = tokenized(bitmap.get());
        if (flag.raised()) {
            throw UsageError("cancelled");
        }
        llama_token next = first ? *first : take_tokens(count_tokens(chunks, /* texts */ false));
        std::vector<MediaPart> found;
        for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
            found.push_back(part(mtmd_input_chunks_get(chunks.get(), i), next));
        }
        return found;
    });
}

int64_t MediaEncoder::n_image_tokens(int32_t width, int32_t height) const {
    return unless_asserted([&] {
        const BitmapOwner bitmap(
            mtmd_bitmap_init(static_cast<uint32_t>(width), static_cast<uint32_t>(height), /* a placeholder */ nullptr));
        return count_tokens(tokenized(bitmap.get()), /* texts */ true);
    });
}

bool MediaEncoder::encode(MediaChunk & chunk, const std::shared_ptr<const Audience> & audience) {
    const BusyGuard guard(busy_);
    const std::shared_ptr<const mtmd_input_chunk> content = chunk.content();
    if (!content) {
        return true;
    }
    clear_log_errors();
    int32_t rc = 1;
    const StepsRun running;
    const AssertionsThrow assertions; // while mtmd makes the graph: the next encoding makes another
    const bool ended = !gate_.run(audience, [&] { rc = mtmd_encode_chunk(mtmd_.get(), content.get()); });
    if (ended) {
        return false;
    }
    if (rc != 0) {
        throw UsageError("a picture could not be encoded: " + why("mtmd does not say why"));
    }
    const float * rows = mtmd_get_output_embd(mtmd_.get());
    const auto n_values = static_cast<std::size_t>(chunk.layout()->n_tokens) *
                          static_cast<std::size_t>(llama_model_n_embd_inp(model_->handle()));
    chunk.set_rows({rows, rows + n_values});
    return true;
}

} // namespace pyllmcancel
