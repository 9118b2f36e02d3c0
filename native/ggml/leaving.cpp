#include "ggml/leaving.hpp"

namespace leaving {
namespace {

constexpr int ALL_TAKEN = 1 << 30; // more units than a node has

// Set in the thread that computes a graph; the others of its pool do not ask.
struct Question {
    bool (*ask)(void * self) noexcept = nullptr;
    void * self = nullptr;
};

thread_local Question question;

} // namespace

void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept { question = {ask, self}; }

bool is_to_leave() noexcept { return question.ask && question.ask(question.self); }

void take_all(ggml_threadpool * pool) { ggml_threadpool_chunk_set(pool, ALL_TAKEN); }

} // namespace leaving
