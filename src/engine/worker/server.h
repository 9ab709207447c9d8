// Answers one client of a worker: what ggml-rpc's server does, but whatever a client sends is checked before
// it is used, and what is wrong ends the connection.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <optional>
#include <span>
#include <vector>

#include "engine/devices.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/thread_choice.h"
#include "engine/ggml/worker_panels.h"
#include "engine/worker/graph.h"
#include "engine/worker/memory.h"
#include "engine/worker/stream.h"

namespace refold::rpc {

class Server {
public:
    // Opens the devices. Throws Error(unsupported) where one cannot be used.
    Server(std::span<const Device> devices, int threads, Share& share);

    // Until the client leaves. Throws Error when it sends what it may not, or takes too long.
    void serve(Stream& stream);

private:
    void answer(Command command, uint64_t size, Stream& stream);
    uint32_t device(uint32_t given) const;
    void set_tensor(uint64_t size, Stream& stream);
    void get_tensor(const GetTensor& request, Stream& stream);
    void memset_tensor(const MemsetTensor& request);
    void copy_tensor(const CopyTensor& request);
    void init_tensor(const Tensor& given);
    uint64_t alloc_size(const GetAllocSize& request);
    void free_buffer(uint64_t buffer);
    void take_graph(uint64_t size, Stream& stream);
    // `again`: it was computed before, so that the times can be compared.
    void compute(uint32_t device, bool again, Stream& stream);
    // Before the client reads or writes this memory.
    void use(const void* data, uint64_t size) { panels_.before_access(data, size); }

    Share& share_;
    std::vector<ggml_backend_ptr> backends_;
    std::vector<ggml_backend_t> handles_;
    WorkerPanels panels_;
    ThreadpoolPtr pool_;
    ThreadChoice threads_;
    Memory memory_;
    std::vector<std::optional<Graph>> graphs_;  // the last one of each device
};

// Says HELLO back. Throws Error(input) for another greeting.
void greet(Stream& stream);
// A greeting of ggml's client: a command, a size and the capabilities.
inline constexpr size_t kGreetingBytes = 1 + sizeof(uint64_t) + sizeof(Hello);
bool is_greeting(std::span<const std::byte, 1 + sizeof(uint64_t)> first);

}  // namespace refold::rpc
