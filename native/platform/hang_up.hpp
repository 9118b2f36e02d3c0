#pragma once

namespace pyllmcancel {

// Returns whether the other end of a connected socket has closed it, or the connection broke. Neither waits nor reads;
// false for a descriptor that is not open.
bool has_hung_up(int socket) noexcept;

} // namespace pyllmcancel
