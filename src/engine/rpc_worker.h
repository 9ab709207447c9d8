// Workers: devices of other machines, through ggml's module for that (libggml-rpc.so). The connection has
// neither encryption nor authentication, and a worker does whatever a client tells it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/devices.h"

struct ggml_backend;

namespace refold {

// The devices of the worker at "HOST:PORT". Throws Error(usage) for another form, and for an address outside
// of the loopback and of private networks (RFC 1918, link-local) unless `access` allows it;
// Error(unsupported) without the module; Error(io) when nothing answers there within seconds, a worker that
// is busy with another client, or one that speaks another version. The first connection's patience holds for
// later ones.
std::vector<Device> connect_worker(const std::string& address, const WorkerAccess& access = {});

// Whether the worker of a backend is lost. What it has computed since is zero.
bool has_lost_worker(ggml_backend* backend);

// Lends devices to one client after the other until the process ends. Throws as connect_worker() does, and
// Error(io) when it cannot listen there.
void run_worker(const std::string& address, bool anywhere, std::span<const Device> devices, int threads);

}  // namespace refold
