// Memory for weights that are kept as panels. It takes the place of ggml's for repacked weights (cmake/llama_cpp.cmake).
//
// llama.cpp asks for each matrix whether the operation that it is for can be computed from here. Writing a matrix makes
// panels of it; it can't be read back. On processors without AVX2 the place is left to ggml's.

#include "ggml/leaving.hpp"
#include "ggml/panel_product.hpp"
#include "ggml/panel_type.hpp"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "repack.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

ggml_backend_buffer_type_t panels_type();

const panels::Format * format_of(const ggml_tensor * tensor) {
    if (!tensor->buffer || tensor->buffer->buft != panels_type()) {
        return nullptr;
    }
    return panels::format_of(tensor->type);
}

class Traits : public ggml::cpu::tensor_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = panels::work_size(*format_of(op->src[0]), n_threads, *op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        panels::compute(*format_of(op->src[0]), *params, *op);
        return true;
    }
};

class Panels : public panels::Type {
  public:
    void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept override {
        leaving::ask_in_nodes(ask, self);
    }

    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const bool is_plain = op->op == GGML_OP_MUL_MAT && ggml_n_dims(op->src[0]) == 2;
        const bool is_of_experts = op->op == GGML_OP_MUL_MAT_ID && ggml_n_dims(op->src[0]) == 3;
        if ((!is_plain && !is_of_experts) || !format_of(op->src[0])) {
            return false;
        }
        const ggml_tensor * x = op->src[1];
        return x->type == GGML_TYPE_F32 && (!x->buffer || ggml_backend_buft_is_host(x->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        const bool is_product = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID;
        return is_product && format_of(op->src[0]) ? &traits_ : nullptr;
    }

  private:
    Traits traits_;
};

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    const panels::Format & format = *panels::format_of(tensor->type);
    const int64_t n_matrices = tensor->ne[2] * tensor->ne[3];
    const size_t of_matrix = panels::size_of_panels(format, *tensor) / n_matrices;
    for (int64_t i = 0; i < n_matrices; ++i) {
        format.fill(static_cast<char *>(tensor->data) + i * of_matrix,
                    static_cast<const char *>(data) + i * tensor->nb[2], tensor->ne[1],
                    tensor->ne[0] / format.block_size);
    }
}

const char * name(ggml_backend_buffer_type_t) { return panels::TYPE_NAME; }

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

size_t size_of(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const panels::Format * format = panels::format_of(tensor->type);
    return format ? panels::size_of_panels(*format, *tensor) : ggml_nbytes(tensor);
}

// Large pages, where the system has any: a step reads all panels once, and would look up each small page.
void ask_for_large_pages([[maybe_unused]] ggml_backend_buffer_t buffer) {
#if defined(MADV_HUGEPAGE)
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
    const uintptr_t first = (begin + page - 1) / page * page;
    const uintptr_t end = (begin + ggml_backend_buffer_get_size(buffer)) / page * page;
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);
    }
#endif
}

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        ask_for_large_pages(buffer);
        buffer->buft = type;
        buffer->iface.set_tensor = set_tensor;
        buffer->iface.get_tensor = nullptr;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

ggml_backend_buffer_type_t panels_type() {
    static Panels & context = *new Panels; // never destroyed: a step may outlive the static objects
    static ggml_backend_buffer_type type = {
        {name, allocate, alignment, nullptr, size_of, nullptr},
        ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        &context,
    };
    return &type;
}

} // namespace

// ggml's list of such memory takes it from here.
ggml_backend_buffer_type_t pyllmcancel_repack_buffer_type() {
    return panels::format_of(GGML_TYPE_Q4_0) ? panels_type() : ggml_backend_cpu_repack_buffer_type();
}
