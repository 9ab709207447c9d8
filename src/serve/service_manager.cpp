#include "serve/service_manager.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/error.h"

namespace refold {
namespace {

constexpr int kFirst = 3;  // sd_listen_fds(3)

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

bool listens_for_tcp(int socket) {
    int listens = 0, type = 0;
    socklen_t size = sizeof listens;
    sockaddr_storage address{};
    socklen_t address_size = sizeof address;
    return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
           getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockname(socket, reinterpret_cast<sockaddr*>(&address), &address_size) == 0 &&
           (address.ss_family == AF_INET || address.ss_family == AF_INET6);
}

}  // namespace

std::optional<int> inherited_listener() {
    // They are for this process only, not for one that it was started by.
    if (variable("LISTEN_PID") != std::to_string(getpid())) return std::nullopt;
    const std::string count = variable("LISTEN_FDS");
    if (count.empty() || count == "0") return std::nullopt;
    if (count != "1")
        fail(ErrorCode::usage, "serve", "LISTEN_FDS: got {} sockets, expected 1 (one ListenStream=)", count);
    if (!listens_for_tcp(kFirst))
        fail(ErrorCode::usage, "serve",
             "LISTEN_FDS: the socket handed over does not listen for TCP - ListenStream= takes an address "
             "and a port, and Accept=no");
    fcntl(kFirst, F_SETFD, FD_CLOEXEC);
    return kFirst;
}

void notify_service_manager(std::string_view lines) {
    const std::string path = variable("NOTIFY_SOCKET");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return;
    memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';  // a name that is in no file system
    const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return;
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    sendto(socket, lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&address), size);
    close(socket);
}

}  // namespace refold
