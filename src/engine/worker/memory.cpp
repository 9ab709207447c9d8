#include "engine/worker/memory.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "engine/ggml/handles.h"

namespace refold::rpc {
namespace {

constexpr size_t kMostBuffers = 4096;
// Buffers lie so far apart for the client, and none is larger.
constexpr int kAddressBits = 44;
constexpr uint64_t kMostBytes = uint64_t{1} << kAddressBits;
// What a buffer costs besides its bytes.
constexpr uint64_t kLeastBytes = 4096;

// Numbers that elements of the type are made of.
size_t alignment_of(ggml_type type) {
    if (ggml_is_quantized(type)) return sizeof(ggml_fp16_t);
    return ggml_type_size(type);
}

void check_form(const Tensor& given) {
    if (given.type >= GGML_TYPE_COUNT)
        fail(ErrorCode::input, "worker", "a tensor of type {}", given.type + 0);
    const auto type = static_cast<ggml_type>(given.type);
    if (ggml_blck_size(type) == 0 || ggml_type_size(type) == 0)
        fail(ErrorCode::input, "worker", "a tensor of type {}", given.type + 0);
    if (given.op >= GGML_OP_COUNT) fail(ErrorCode::input, "worker", "a tensor of operation {}", given.op + 0);
    if (given.ne[0] % static_cast<uint64_t>(ggml_blck_size(type)) != 0)
        fail(ErrorCode::input, "worker", "rows of {} elements of {}, which are not whole blocks",
             given.ne[0] + 0, ggml_type_name(type));
    __extension__ using Wide = unsigned __int128;
    Wide elements = 1, bytes = ggml_type_size(type);
    const auto aligned = alignment_of(type);
    for (size_t i = 0; i < GGML_MAX_DIMS; ++i) {
        if (given.ne[i] > static_cast<uint32_t>(std::numeric_limits<int32_t>::max()))
            fail(ErrorCode::input, "worker", "a tensor with {} in dimension {}", given.ne[i] + 0, i);
        elements *= given.ne[i];
        bytes += Wide{given.ne[i]} * given.nb[i];
        if (given.nb[i] % aligned != 0)
            fail(ErrorCode::input, "worker", "elements of {} at a distance of {} bytes", ggml_type_name(type),
                 given.nb[i] + 0);
    }
    if (elements > kMostBytes || bytes > kMostBytes)
        fail(ErrorCode::input, "worker", "a tensor that is too large");
}

}  // namespace

Memory::~Memory() {
    for (uint64_t i = 1; i <= buffers_.size(); ++i)
        if (buffers_[i - 1]) free(i);
}

const Memory::Buffer& Memory::buffer(uint64_t number) const {
    if (number == 0 || number > buffers_.size() || !buffers_[number - 1])
        fail(ErrorCode::input, "worker", "there is no buffer {}", number);
    return *buffers_[number - 1];
}

ggml_backend_buffer_t Memory::at(uint64_t number) const { return buffer(number).handle.get(); }
uint64_t Memory::address(uint64_t number) const {
    buffer(number);
    return number << kAddressBits;
}
uint64_t Memory::bytes(uint64_t number) const { return ggml_backend_buffer_get_size(at(number)); }

uint64_t Memory::allocate(uint32_t device, uint64_t bytes) {
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backends_[device]);
    if (bytes == 0 || bytes > kMostBytes || bytes > ggml_backend_buft_get_max_size(type)) return 0;
    auto place = std::ranges::find_if(buffers_, [](const auto& buffer) { return !buffer; });
    if (place == buffers_.end() && buffers_.size() == kMostBuffers) return 0;
    const uint64_t taken = std::max(bytes, kLeastBytes);
    if (!share_.take(device, taken)) return 0;
    ggml_backend_buffer_ptr handle(ggml_backend_buft_alloc_buffer(type, bytes));
    if (!handle) {
        share_.give_back(device, taken);
        return 0;
    }
    advise_large_pages(handle.get());
    if (place == buffers_.end()) place = buffers_.emplace(buffers_.end());
    *place = Buffer{std::move(handle), device, taken};
    return static_cast<uint64_t>(place - buffers_.begin()) + 1;
}

void Memory::free(uint64_t number) {
    const Buffer& freed = buffer(number);
    const uint32_t device = freed.device;
    const uint64_t bytes = freed.bytes;
    buffers_[number - 1].reset();
    share_.give_back(device, bytes);
}

ggml_tensor* Memory::tensor(ggml_context* context, const Tensor& given) const {
    check_form(given);
    ggml_tensor* out = ggml_new_tensor_4d(context, static_cast<ggml_type>(given.type), given.ne[0],
                                          given.ne[1], given.ne[2], given.ne[3]);
    std::ranges::copy(given.nb, out->nb);
    out->op = static_cast<ggml_op>(given.op);
    std::ranges::copy(given.op_params, out->op_params);
    out->flags = given.flags & (GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT);
    std::ranges::copy(given.name, out->name);
    out->name[GGML_MAX_NAME - 1] = '\0';
    if (given.buffer == 0) return out;
    const Buffer& in = buffer(given.buffer);
    const uint64_t size = bytes(given.buffer), offset = given.data - address(given.buffer);
    if (offset > size || ggml_nbytes(out) > size - offset)
        fail(ErrorCode::input, "worker", "a tensor of {} bytes that does not lie in its buffer of {}",
             ggml_nbytes(out), size);
    if (offset % alignment_of(out->type) != 0)
        fail(ErrorCode::input, "worker", "a tensor of {} at byte {} of its buffer", ggml_type_name(out->type),
             offset);
    out->buffer = in.handle.get();
    out->data = static_cast<std::byte*>(ggml_backend_buffer_get_base(out->buffer)) + offset;
    return out;
}

ggml_tensor* Memory::part(ggml_context* context, const Tensor& given, uint64_t offset, uint64_t bytes) const {
    ggml_tensor* out = tensor(context, given);
    if (out->buffer == nullptr) fail(ErrorCode::input, "worker", "a tensor without memory");
    const uint64_t size = ggml_nbytes(out);
    if (offset > size || bytes > size - offset)
        fail(ErrorCode::input, "worker", "{} bytes from {} of a tensor that has {}", bytes, offset, size);
    return out;
}

}  // namespace refold::rpc
