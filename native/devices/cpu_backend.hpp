#pragma once

#include <string>

struct ggml_tensor;
struct ggml_threadpool;
struct ggml_threadpool_params;

// The CPU's back end, which is linked in, or, with PYLLMCANCEL_MODULES, a library that is chosen and loaded at run
// time: then functions that no other back end has are looked up by name. All other code of ours is the same for both.
namespace pyllmcancel {

// Sets where libraries of back ends are; called once, before anything else here.
void set_backend_folder(const std::string & folder);

// Loads them, once: to be called before the first question to ggml about devices or features. A library that cannot be
// loaded, because what it needs is missing, is skipped. Does nothing where all is linked in.
void load_backends();

// The file of the CPU's back end; empty where it is linked in.
std::string cpu_backend_file();

// ggml's functions of the same names. Null if the threads cannot be started.
ggml_threadpool * new_threadpool(ggml_threadpool_params & params);
void free_threadpool(ggml_threadpool * pool) noexcept;
void pause_threadpool(ggml_threadpool * pool) noexcept;

// Returns whether the CPU's back end computes products of quantized weights from panels (native/ggml).
bool has_panels();

bool is_in_panels(const ggml_tensor & tensor);

// While it lives, graphs that the CPU computes for the calling thread ask `ask`, with `self`, inside their large products and
// their attention, too, whether to abort; the graph itself must be aborted right after. Without panels they do not ask.
class AskInNodes {
  public:
    AskInNodes(bool (*ask)(void * self) noexcept, void * self) noexcept;
    ~AskInNodes();
    AskInNodes(const AskInNodes &) = delete;
    AskInNodes & operator=(const AskInNodes &) = delete;
};

} // namespace pyllmcancel
