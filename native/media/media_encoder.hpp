#pragma once

#include "cells/media_chunk.hpp"
#include "devices/turns.hpp"
#include "media/encode_gate.hpp"
#include "model/model.hpp"
#include "step/cancel_flag.hpp"

#include "mtmd.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

struct MediaParams {
    int32_t n_threads = 1;
    bool offload = true;            // compute on a GPU, if there is one
    int32_t image_min_tokens = -1;  // of models whose pictures have any size; -1 is what the projector says
    int32_t image_max_tokens = -1;
    bool every_node = false;        // for tests: see EncodeGate
};

// A part of what stands for a picture in a prompt: tokens of text, such as a marker before it, or a run of rows.
struct MediaPart {
    std::vector<llama_token> tokens;
    std::shared_ptr<MediaChunk> chunk; // null for text
};

using Chunks = std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)>;

// A projector: makes embeddings of pictures and sounds for one model.
//
// parts() may be called by any number of threads; encode() by one at a time, a second one gets ContextBusy.
class MediaEncoder {
  public:
    // Throws ModelLoadError, which quotes mtmd.
    MediaEncoder(std::shared_ptr<const Model> model, const std::string & path, const MediaParams & params);
    ~MediaEncoder();
    MediaEncoder(const MediaEncoder &) = delete;
    MediaEncoder & operator=(const MediaEncoder &) = delete;

    bool has_vision() const { return mtmd_support_vision(mtmd_.get()); }
    bool has_audio() const { return mtmd_support_audio(mtmd_.get()); }

    // The sample rate that it hears at; -1 if it does not.
    int32_t sample_rate() const { return mtmd_get_audio_sample_rate(mtmd_.get()); }

    // Decodes and prepares a file, and returns what stands for it in a prompt. The tokens of its rows begin with `first`, if
    // it is given: those that the same file had before. Ends early when `flag` is raised, and the decoding after `seconds`.
    // Throws UsageError.
    std::vector<MediaPart> parts(std::string_view file, bool is_audio, std::optional<llama_token> first,
                                 const CancelFlag & flag, double seconds);

    // The tokens that stand for a picture of this size, without its pixels. Throws UsageError.
    int64_t n_image_tokens(int32_t width, int32_t height) const;

    // Makes the rows of `chunk`; false, and nothing is kept, if all of `audience` have left. Throws UsageError if it cannot.
    bool encode(MediaChunk & chunk, const std::shared_ptr<const Audience> & audience);

    // For tests: see EncodeGate.
    void raise_at(uint32_t node, std::shared_ptr<CancelFlag> flag) { gate_.raise_at(node, std::move(flag)); }
    uint32_t polls() const noexcept { return gate_.polls(); }

    // The turns that contexts take part in which compute beside it.
    const std::shared_ptr<Turns> & turns() const noexcept { return turns_; }

  private:
    struct Free {
        void operator()(mtmd_context * context) const noexcept { mtmd_free(context); }
    };

    Chunks tokenized(const mtmd_bitmap * bitmap) const;
    MediaPart part(const mtmd_input_chunk * chunk, llama_token & next) const;
    llama_token take_tokens(int64_t count);

    std::shared_ptr<const Model> model_;
    long owner_pid_;
    std::size_t image_bytes_; // of a prepared picture of the size that the projector is made for
    std::shared_ptr<Turns> turns_;
    EncodeGate gate_; // outlives mtmd_, which calls it
    std::unique_ptr<mtmd_context, Free> mtmd_;
    std::atomic<bool> busy_{false};
    std::atomic<int64_t> n_given_{0}; // tokens of rows
};

} // namespace pyllmcancel
