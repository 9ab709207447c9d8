#include "serve/exchange_stream.h"

#include <poll.h>

#include <algorithm>

namespace refold {

using std::chrono::milliseconds;

bool client_gone(int socket) {
    pollfd state{socket, POLLRDHUP, 0};
    return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

ssize_t ExchangeStream::read(char* to, size_t size) {
    const size_t count = request_.copy(to, size);
    request_.remove_prefix(count);
    return static_cast<ssize_t>(count);
}

ssize_t ExchangeStream::write(const char* from, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t count = failed_ ? Wire::kBroken : wire_.send(from + done, size - done);
        if (count > 0) {
            done += static_cast<size_t>(count);
            // The system's buffer is full: a slow line may take its time as long as it moves.
            if (patience_ < most_) patience_ = std::min(most_, patience_ + milliseconds(count >> 4));
        } else if (count != Wire::kLater || !wait()) {
            failed_ = true;
            return -1;
        }
    }
    return static_cast<ssize_t>(size);
}

bool ExchangeStream::wait() {
    const auto start = std::chrono::steady_clock::now();
    pollfd state{wire_.socket(), wire_.events(), 0};
    const int most = static_cast<int>(std::min<int64_t>(patience_.count(), INT32_MAX));
    const int ready = ::poll(&state, 1, std::max(most, 0));
    patience_ -= std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - start);
    return ready > 0 && (state.revents & (POLLERR | POLLHUP)) == 0;
}

void ExchangeStream::get_remote_ip_and_port(std::string& ip, int& port) const {
    ip = "";
    port = 0;
}

void ExchangeStream::get_local_ip_and_port(std::string& ip, int& port) const {
    get_remote_ip_and_port(ip, port);
}

}  // namespace refold
