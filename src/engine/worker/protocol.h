// ggml's protocol for devices of other machines (ggml-rpc.cpp, version 7): what goes over the connection. A
// message is a command (1 byte), the size of what follows (8 bytes), and that many bytes; an answer is a size
// and its bytes.
#pragma once

#include <ggml-rpc.h>
#include <ggml.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace refold::rpc {

static_assert(RPC_PROTO_MAJOR_VERSION == 7 && RPC_PROTO_MINOR_VERSION == 0,
              "another protocol: compare this file with ggml-rpc.cpp");

enum class Command : uint8_t {
    alloc_buffer,
    get_alignment,
    get_max_size,
    buffer_get_base,
    free_buffer,
    buffer_clear,
    set_tensor,
    set_tensor_hash,
    get_tensor,
    copy_tensor,
    graph_compute,
    get_device_memory,
    init_tensor,
    get_alloc_size,
    hello,
    device_count,
    graph_recompute,
    memset_tensor,
};

// A number at any address: a reference to one in an array of a packed structure would be undefined.
template <typename T>
class Unaligned {
public:
    Unaligned() = default;
    Unaligned(T value) { std::memcpy(bytes_.data(), &value, sizeof value); }
    operator T() const {
        T out;
        std::memcpy(&out, bytes_.data(), sizeof out);
        return out;
    }

private:
    std::array<unsigned char, sizeof(T)> bytes_;
};

#pragma pack(push, 1)
struct Tensor {
    uint64_t id;  // of the client; 0: no tensor
    uint32_t type;
    uint64_t buffer;
    std::array<Unaligned<uint32_t>, GGML_MAX_DIMS> ne, nb;
    uint32_t op;
    std::array<Unaligned<int32_t>, GGML_MAX_OP_PARAMS / sizeof(int32_t)> op_params;
    int32_t flags;
    std::array<Unaligned<uint64_t>, GGML_MAX_SRC> src;
    uint64_t view_src, view_offs, data;
    std::array<char, GGML_MAX_NAME> name;
    int32_t use_count;
};
struct Hello {
    std::array<uint8_t, 24> capabilities;  // of other transports than TCP: none here
};
struct HelloAnswer {
    uint8_t major, minor, patch, padding;
    std::array<uint8_t, 24> capabilities;
};
struct OfDevice {
    uint32_t device;
};
struct OfBuffer {
    uint64_t buffer;
};
struct AllocBuffer {
    uint32_t device;
    uint64_t size;
};
struct AllocBufferAnswer {
    uint64_t buffer, size;  // buffer 0: there is no memory
};
struct BufferClear {
    uint64_t buffer;
    uint8_t value;
};
struct SetTensor {  // before the bytes
    Tensor tensor;
    uint8_t cache;
    uint64_t offset;
};
struct SetTensorHash {
    Tensor tensor;
    uint64_t offset, hash;
};
struct MemsetTensor {
    Tensor tensor;
    uint64_t offset, size;
    uint8_t value;
};
struct GetTensor {
    Tensor tensor;
    uint64_t offset, size;
};
struct CopyTensor {
    Tensor src, dst;
};
struct GetAllocSize {
    uint32_t device;
    Tensor tensor;
    std::array<Tensor, GGML_MAX_SRC> srcs;
};
struct DeviceMemoryAnswer {
    uint64_t free, total;
};
#pragma pack(pop)

// Of GRAPH_COMPUTE: device (4 bytes), number of nodes (4), their ids (8 each), number of tensors (4),
// tensors.

}  // namespace refold::rpc
