// The graphs that a client of a worker sends.
#pragma once

#include <ggml-cpp.h>

#include <span>
#include <vector>

#include "engine/worker/memory.h"
#include "engine/worker/operations.h"

namespace refold::rpc {

bool is_cpu(ggml_backend_t backend);

// A graph that can be computed again and again, as long as the buffers of its tensors exist.
class Graph {
public:
    // `message`: GRAPH_COMPUTE's, without the device. Throws Error(input) where the graph is not one that
    // ggml makes: what each operation needs is checked before any is computed.
    Graph(std::span<const std::byte> message, const Memory& memory, ggml_backend_t backend);

    // Before it is computed, each time. Throws Error(input) where it is given numbers of rows that are not
    // there.
    void check_numbers() const;
    ggml_cgraph* graph() const { return graph_; }

private:
    void check(const ggml_tensor* operation, ggml_backend_t backend) const;
    void add(const Numbers& numbers);

    ggml_context_ptr context_;
    ggml_cgraph* graph_ = nullptr;
    std::vector<Numbers> numbers_;  // that the graph is given
};

}  // namespace refold::rpc
