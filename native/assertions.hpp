#pragma once

namespace pyllmcancel {

// Replaces what ggml does when one of its assertions fails: it prints why and ends the process, but starts no debugger.
void install_assertions();

// While one lives, an assertion that fails on this thread is thrown as a std::runtime_error with ggml's message. Only for
// loading, making a context, tokenizing and sampling: in the middle of a step the state of the context would be unknown.
class AssertionsThrow {
  public:
    AssertionsThrow() noexcept;
    ~AssertionsThrow();
    AssertionsThrow(const AssertionsThrow &) = delete;
    AssertionsThrow & operator=(const AssertionsThrow &) = delete;
};

} // namespace pyllmcancel
