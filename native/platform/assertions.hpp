#pragma once

namespace pyllmcancel {

// Replaces what ggml does when one of its assertions fails: it prints why and ends the process, but starts no debugger.
void install_assertions();

// Said, once and with ggml's message, before a failed assertion ends the process in the midst of a step, on whichever
// thread it failed: that is what a back end does whose driver reports an error.
void set_last_words(void (*say)(const char * message));

// While one lives, a step computes: there is someone to say last words to.
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
