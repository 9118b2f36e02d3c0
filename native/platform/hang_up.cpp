#include "platform/hang_up.hpp"

#include "platform/platform.hpp"

namespace pyllmcancel {

bool has_hung_up(int socket) noexcept { return platform::has_hung_up(socket); }

} // namespace pyllmcancel
