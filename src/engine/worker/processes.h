// The processes of a worker: one waits for clients, and one serves each of them.
#pragma once

#include <chrono>
#include <string>

namespace refold::rpc {

struct Lent {
    std::string address;  // as it was given, for messages
    std::string devices;  // names for find_devices()
    int threads = 1;
};

// Serves whoever connects to the listening socket, until the process ends. A client has a process of its own:
// whatever it makes ggml or a driver do ends with it. This process opens no device, starts no thread and
// reads nothing of a client but its greeting. Throws as find_devices() does.
[[noreturn]] void serve_clients(int listening, const Lent& lent);

}  // namespace refold::rpc
