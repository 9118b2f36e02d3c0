#include "hang_up.hpp"

#include <poll.h>

namespace pyllmcancel {

namespace {

#ifdef POLLRDHUP
constexpr short CLOSED = POLLRDHUP;
#else
// Elsewhere only a broken connection is seen before all its data were read.
constexpr short CLOSED = 0;
#endif

} // namespace

bool has_hung_up(int socket) noexcept {
    pollfd asked{socket, CLOSED, 0};
    return poll(&asked, 1, 0) == 1 && (asked.revents & (CLOSED | POLLHUP | POLLERR)) != 0;
}

} // namespace pyllmcancel
