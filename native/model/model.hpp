#pragma once

#include "devices/placement.hpp"
#include "model/adapters.hpp"

#include "llama.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

// The kind of a model's memory of past tokens. After an abort `attention` holds what was committed; the other two may
// not (docs/measured/abort-sweep.md). `none` cannot generate token by token (diffusion, encoders).
enum class MemoryKind : int32_t { attention = 0, recurrent = 1, hybrid = 2, none = 3 };

struct ModelParams {
    Placement placement;
    bool use_mmap = true;
    bool use_mlock = false;
    bool check_tensors = false;
    std::vector<std::string> lora; // adapters' files
    int64_t progress_interval_us = 100'000; // least time between two calls of the progress callback
    bool require_vocabulary = true; // false: tokens in, tokens out (toy models in tests)
    bool without_weights = false;   // its facts only: no memory is taken, and nothing can be computed
    bool heads = false;             // with those that guess further tokens, if the file has any
};

// Called from the loading thread with a fraction in [0, 1]; returning false cancels the load.
using Progress = std::function<bool(float)>;

// A loaded model and its vocabulary. Immutable once loaded, so any number of contexts and threads may share it.
class Model {
  public:
    // Throws ModelLoadError, which quotes llama.cpp, or LoadCancelled.
    static std::shared_ptr<Model> load(const std::string & path, const ModelParams & params, const Progress & progress);

    llama_model * handle() const noexcept { return model_.get(); }
    const llama_vocab * vocab() const noexcept { return llama_model_get_vocab(model_.get()); }

    // The LoRA adapters that were loaded with this model.
    const Adapters & adapters() const noexcept { return adapters_; }

    MemoryKind memory_kind() const;

    // Returns whether a context's cells can be divided among its sequences: not with recurrent and hybrid
    // memories.
    bool can_divide_cells() const;

    // The number of layers on each device, the output layer included, in the order of the layers.
    std::vector<std::pair<std::string, int32_t>> layers_by_device() const;

    // Returns whether weights are computed by a GPU.
    bool is_offloaded() const;

    // Returns whether a row of each matrix product has the same bits however many rows are multiplied with it. Known of
    // x86 only.
    bool has_invariant_rows() const;

    std::string description() const;
    std::vector<std::pair<std::string, std::string>> metadata() const;

    // Empty when the model has none.
    std::string chat_template() const;

    // The number of scores that the model's classification head gives a text; 0 for a model without a head.
    int32_t n_scores() const;

    // The names of these scores, if the file has them.
    std::vector<std::string> labels() const;

    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;

    // The bytes of one token; control tokens are empty unless `special`.
    std::string piece(llama_token token, bool special) const;

    // The bytes of all tokens, by their ids.
    std::vector<std::string> pieces(bool special) const;

    // The tokens that end an answer.
    std::vector<llama_token> eog_tokens() const;

    // The bytes of the longest piece: a lower bound of a text's tokens follows from its length. 0 if there is none, because
    // the tokenizer drops or changes parts of texts.
    std::size_t longest_piece() const;

  private:
    // Frees the memory of a mapped file's pages that no product reads: those of weights that were copied, as panels are,
    // and of matrices whose rows are looked up. Such rows are read from the file again.
    void free_copied_weights() const;

    struct Free {
        void operator()(llama_model * model) const noexcept { llama_model_free(model); }
    };

    explicit Model(llama_model * model) : model_(model) {}

    std::unique_ptr<llama_model, Free> model_; // owns the adapters
    Adapters adapters_;
};

} // namespace pyllmcancel
