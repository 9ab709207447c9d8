// Workers: devices of other machines. The client is ggml's (its module libggml-rpc.so), the worker is
// worker/server.h. The connection has neither encryption nor authentication.
#pragma once

#include <string>
#include <vector>

#include "engine/devices.h"

struct ggml_backend;

namespace refold {

// The devices of the worker at "HOST:PORT". Throws Error(usage) for another form, and for an address outside
// of the loopback and of private networks (RFC 1918, link-local) unless `access` allows it;
// Error(unsupported) without the module; Error(io) when nothing answers there within seconds, a worker that
// has too many clients, or one that speaks another version. The first connection's patience holds for
// later ones.
std::vector<Device> connect_worker(const std::string& address, const WorkerAccess& access = {});

// Whether the worker of a backend is lost. What it has computed since is zero.
bool has_lost_worker(ggml_backend* backend);

// Lends devices, names for find_devices(), to all who connect until the process ends. Call it before any
// other function that opens devices or starts threads. Throws as connect_worker() and find_devices() do, and
// Error(io) when it cannot listen there.
[[noreturn]] void run_worker(const std::string& address, bool anywhere, const std::string& devices,
                             int threads);

}  // namespace refold
