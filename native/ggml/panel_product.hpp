// Products of matrices whose weights are panels: MUL_MAT and, for experts, MUL_MAT_ID.

#pragma once

#include "ggml-cpu-impl.h"
#include "ggml.h"

#include <cstddef>

namespace panels {

// The functions and sizes of a type of weights. All are functions of a matrix's shape and of memory that the caller owns.
struct Format {
    std::size_t panel_size;      // bytes of a panel
    std::size_t activation_size; // bytes of a block of activations
    int64_t block_size;          // elements
    // Fills the panels of N_ROWS rows of N_BLOCKS blocks each.
    void (*fill)(void * panels, const void * rows, int64_t n_rows, int64_t n_blocks);
    void (*quantize)(void * to, const float * x, int64_t n_blocks);
    // Multiplies the panels FIRST to LAST by rows of activations; N_WEIGHTS: the matrix's rows.
    void (*multiply)(const void * panels, int64_t n_blocks, int64_t first, int64_t last, int64_t n_weights,
                     const struct Row * rows, int64_t n_rows);
};

// Returns none for types that have no panels.
const Format * format_of(ggml_type type);

// The bytes of a matrix's panels; of all of them where there are several.
std::size_t size_of_panels(const Format & format, const ggml_tensor & weights);

// The bytes that `compute` needs of the graph's work memory.
std::size_t work_size(const Format & format, int n_threads, const ggml_tensor & product);

void compute(const Format & format, const ggml_compute_params & params, ggml_tensor & product);

} // namespace panels
