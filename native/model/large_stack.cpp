#include "model/large_stack.hpp"

#include "platform/errors.hpp"
#include "platform/platform.hpp"

#include <exception>

namespace pyllmcancel {

namespace {

struct Call {
    const std::function<void()> & work;
    std::exception_ptr error;
};

void run(void * given) {
    Call & call = *static_cast<Call *>(given);
    try {
        call.work();
    } catch (...) {
        call.error = std::current_exception();
    }
}

} // namespace

void run_on_stack(std::size_t bytes, const std::function<void()> & work) {
    Call call{work, nullptr};
    if (!platform::run_in_thread(bytes, run, &call)) {
        throw UsageError("there is no memory to tokenize a text so long");
    }
    if (call.error) {
        std::rethrow_exception(call.error);
    }
}

} // namespace pyllmcancel
