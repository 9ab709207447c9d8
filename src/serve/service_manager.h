// systemd, or another program that starts the server and speaks its two protocols: sd_listen_fds(3),
// sd_notify(3).
#pragma once

#include <optional>
#include <string_view>

namespace refold {

// A socket that listens, which the service manager has handed over in place of an address to listen on.
// Throws Error(usage) for several, and for one that is no listening TCP socket.
std::optional<int> inherited_listener();

// Tells the service manager lines such as "READY=1". Without one it does nothing.
void notify_service_manager(std::string_view lines);

}  // namespace refold
