#include "large_stack.hpp"

#include "errors.hpp"

#include <exception>
#include <pthread.h>

namespace pyllmcancel {

namespace {

struct Call {
    const std::function<void()> & work;
    std::exception_ptr error;
};

void * run(void * given) {
    Call & call = *static_cast<Call *>(given);
    try {
        call.work();
    } catch (...) {
        call.error = std::current_exception();
    }
    return nullptr;
}

} // namespace

void run_on_stack(std::size_t bytes, const std::function<void()> & work) {
    constexpr std::size_t page = 1 << 16; // of any system
    Call call{work, nullptr};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_t thread;
    const bool begun = pthread_attr_setstacksize(&attributes, (bytes / page + 1) * page) == 0 &&
                       pthread_create(&thread, &attributes, run, &call) == 0;
    pthread_attr_destroy(&attributes);
    if (!begun) {
        throw UsageError("there is no memory to tokenize a text so long");
    }
    pthread_join(thread, nullptr);
    if (call.error) {
        std::rethrow_exception(call.error);
    }
}

} // namespace pyllmcancel
