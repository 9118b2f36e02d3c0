#pragma once

namespace pyllmcancel {

// Replaces ggml's handler of failed assertions: this one prints the message and ends the process, but starts no
// debugger.
void install_assertions();

// Called once, with ggml's message, before a failed assertion ends the process in the middle of a step, on whichever
// thread it failed: a back end fails so when its driver reports an error.
void set_last_words(void (*say)(const char * message));

// While one lives, a step computes: somebody should be notified of a failed assertion.
class StepsRun {
  public:
    StepsRun() noexcept;
    ~StepsRun();
    StepsRun(const StepsRun &) = delete;
    StepsRun & operator=(const StepsRun &) = delete;
};

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
