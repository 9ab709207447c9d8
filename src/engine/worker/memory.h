// The memory that a client of a worker has allocated, and its tensors there.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <optional>
#include <vector>

#include "engine/worker/protocol.h"
#include "engine/worker/share.h"

namespace refold::rpc {

// A client knows a buffer by its number and by an address that is not the real one, so that it learns nothing
// of the process.
class Memory {
public:
    // `backends`: of the devices, which must outlive this.
    Memory(const std::vector<ggml_backend_t>& backends, Share& share) : backends_(backends), share_(share) {}
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // The number of the new buffer; 0: there is no memory for it.
    uint64_t allocate(uint32_t device, uint64_t bytes);
    void free(uint64_t buffer);
    ggml_backend_buffer_t at(uint64_t buffer) const;
    uint64_t address(uint64_t buffer) const;
    uint64_t bytes(uint64_t buffer) const;

    // A tensor as the client describes it, whose elements lie within its buffer if it has one. Its sources
    // and view source are null.
    ggml_tensor* tensor(ggml_context* context, const Tensor& given) const;
    // Likewise, with a buffer, of which [offset, offset + bytes) is within the tensor.
    ggml_tensor* part(ggml_context* context, const Tensor& given, uint64_t offset, uint64_t bytes) const;

private:
    struct Buffer {
        ggml_backend_buffer_ptr handle;
        uint32_t device = 0;
        uint64_t bytes = 0;
    };
    const Buffer& buffer(uint64_t number) const;

    const std::vector<ggml_backend_t>& backends_;
    Share& share_;
    std::vector<std::optional<Buffer>> buffers_;  // number 1 is the first
};

}  // namespace refold::rpc
