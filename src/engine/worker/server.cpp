#include "engine/worker/server.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "io/ggml_log.h"

namespace refold::rpc {
namespace {

// Messages of a graph, with some hundred bytes for each tensor.
constexpr uint64_t kMostGraphBytes = 32 << 20;
// What moves between the connection and a device at once.
constexpr uint64_t kPiece = 1 << 20;

template <class T>
std::span<std::byte> bytes_of(T& value) {
    return std::as_writable_bytes(std::span(&value, 1));
}

uint64_t read_size(Stream& stream) {
    uint64_t size = 0;
    stream.read(bytes_of(size));
    return size;
}

void expect_size(uint64_t size, uint64_t expected) {
    if (size != expected)
        fail(ErrorCode::input, "worker", "a message of {} bytes instead of {}", size, expected);
}

template <class T>
T read_message(uint64_t size, Stream& stream) {
    expect_size(size, sizeof(T));
    T out;
    stream.begin(size);
    stream.read(bytes_of(out));
    return out;
}

void write_size(uint64_t size, Stream& stream) {
    stream.begin(size);
    stream.write(bytes_of(size));
}

template <class T>
void write_answer(T answer, Stream& stream) {
    write_size(sizeof answer, stream);
    stream.write(bytes_of(answer));
}

template <class Function>
Function function_of(ggml_backend_t backend, const char* name) {
    ggml_backend_reg_t module = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(module, name));
}

// A graph of many operations ends early when nobody waits for it any more.
struct Abandoned {
    Stream& stream;
    std::chrono::steady_clock::time_point next{};
    bool left = false;

    static bool asked(void* self) { return static_cast<Abandoned*>(self)->ask(); }
    bool ask() {
        constexpr std::chrono::milliseconds kInterval(50);
        const auto now = std::chrono::steady_clock::now();
        if (!left && now >= next) {
            left = stream.has_left();
            next = now + kInterval;
        }
        return left;
    }
};

// The threads of a step, given back at its end.
class Turn {
public:
    explicit Turn(Share& share) : share_(share), threads_(share.begin_step()) {}
    ~Turn() { share_.end_step(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    int threads() const { return threads_; }

private:
    Share& share_;
    const int threads_;
};

}  // namespace

bool is_greeting(std::span<const std::byte, 1 + sizeof(uint64_t)> first) {
    uint64_t size = 0;
    std::memcpy(&size, first.data() + 1, sizeof size);
    return first[0] == static_cast<std::byte>(Command::hello) && size == sizeof(Hello);
}

void greet(Stream& stream) {
    const auto command = stream.next();
    if (!command) fail(ErrorCode::io, "worker", "the client left without a greeting");
    if (*command != Command::hello) fail(ErrorCode::input, "worker", "a client that does not greet");
    read_message<Hello>(read_size(stream), stream);
    write_answer(
        HelloAnswer{RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION, RPC_PROTO_PATCH_VERSION, 0, {}},
        stream);
}

Server::Server(std::span<const Device> devices, int threads, Share& share)
    : share_(share),
      panels_(threads),
      threads_(threads, ThreadChoice::kShortSteps),
      memory_(handles_, share) {
    for (const Device& device : devices) {
        clear_ggml_errors();
        ggml_backend_ptr backend(ggml_backend_dev_init(device.handle, nullptr));
        if (!backend)
            fail(ErrorCode::unsupported, "worker", "the device {} cannot be used: {}", device.name,
                 ggml_errors());
        handles_.push_back(backend.get());
        backends_.push_back(std::move(backend));
    }
    graphs_.resize(devices.size());
    // Threads that stay: new ones would begin every step on a core that another one has. They do not spin
    // between steps, as another worker of this machine may need the core.
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    params.poll = 0;
    pool_.reset(ggml_threadpool_new(&params));
}

void Server::serve(Stream& stream) {
    while (const auto command = stream.next()) answer(*command, read_size(stream), stream);
}

uint32_t Server::device(uint32_t given) const {
    if (given >= handles_.size()) fail(ErrorCode::input, "worker", "there is no device {}", given);
    return given;
}

void Server::answer(Command command, uint64_t size, Stream& stream) {
    const auto default_type = [&](uint32_t number) {
        return ggml_backend_get_default_buffer_type(handles_[device(number)]);
    };
    switch (command) {
        case Command::device_count:
            expect_size(size, 0);
            return write_answer(static_cast<uint32_t>(handles_.size()), stream);
        case Command::alloc_buffer: {
            const auto request = read_message<AllocBuffer>(size, stream);
            const uint64_t buffer = memory_.allocate(device(request.device), request.size);
            return write_answer(AllocBufferAnswer{buffer, buffer == 0 ? 0 : memory_.bytes(buffer)}, stream);
        }
        case Command::get_alloc_size:
            return write_answer(alloc_size(read_message<GetAllocSize>(size, stream)), stream);
        case Command::get_alignment:
            return write_answer(uint64_t{ggml_backend_buft_get_alignment(
                                    default_type(read_message<OfDevice>(size, stream).device))},
                                stream);
        case Command::get_max_size:
            return write_answer(uint64_t{ggml_backend_buft_get_max_size(
                                    default_type(read_message<OfDevice>(size, stream).device))},
                                stream);
        case Command::buffer_get_base:
            return write_answer(memory_.address(read_message<OfBuffer>(size, stream).buffer), stream);
        case Command::free_buffer: return free_buffer(read_message<OfBuffer>(size, stream).buffer);
        case Command::buffer_clear: {
            const auto request = read_message<BufferClear>(size, stream);
            ggml_backend_buffer_t buffer = memory_.at(request.buffer);
            use(ggml_backend_buffer_get_base(buffer), ggml_backend_buffer_get_size(buffer));
            return ggml_backend_buffer_clear(buffer, request.value);
        }
        case Command::set_tensor: return set_tensor(size, stream);
        case Command::set_tensor_hash:  // of data that an earlier client has sent, which is not kept
            read_message<SetTensorHash>(size, stream);
            return write_answer(uint8_t{0}, stream);
        case Command::get_tensor: return get_tensor(read_message<GetTensor>(size, stream), stream);
        case Command::memset_tensor: return memset_tensor(read_message<MemsetTensor>(size, stream));
        case Command::copy_tensor:
            copy_tensor(read_message<CopyTensor>(size, stream));
            return write_answer(uint8_t{1}, stream);
        case Command::init_tensor: return init_tensor(read_message<Tensor>(size, stream));
        case Command::graph_compute: return take_graph(size, stream);
        case Command::graph_recompute: {
            const uint32_t number = device(read_message<OfDevice>(size, stream).device);
            if (!graphs_[number]) fail(ErrorCode::input, "worker", "there is no graph to compute again");
            return compute(number, true, stream);
        }
        case Command::get_device_memory: {
            const uint32_t number = device(read_message<OfDevice>(size, stream).device);
            size_t free = 0, total = 0;
            ggml_backend_dev_memory(ggml_backend_get_device(handles_[number]), &free, &total);
            return write_answer(DeviceMemoryAnswer{std::min<uint64_t>(share_.free(number), total), total},
                                stream);
        }
        default: fail(ErrorCode::input, "worker", "there is no command {}", static_cast<int>(command));
    }
}

void Server::set_tensor(uint64_t size, Stream& stream) {
    if (size < sizeof(SetTensor)) fail(ErrorCode::input, "worker", "a tensor that ends too early");
    SetTensor request;
    stream.read(bytes_of(request));
    uint64_t left = size - sizeof request, offset = request.offset;
    const ggml_context_ptr context = make_context(1);
    ggml_tensor* tensor = memory_.part(context.get(), request.tensor, offset, left);
    use(static_cast<std::byte*>(tensor->data) + offset, left);
    std::vector<std::byte> piece(std::min(left, kPiece));
    stream.begin(left);
    while (left > 0) {
        const std::span now(piece.data(), std::min(left, kPiece));
        stream.read(now);
        ggml_backend_tensor_set(tensor, now.data(), offset, now.size());
        offset += now.size();
        left -= now.size();
    }
}

void Server::get_tensor(const GetTensor& request, Stream& stream) {
    const ggml_context_ptr context = make_context(1);
    uint64_t left = request.size, offset = request.offset;
    const ggml_tensor* tensor = memory_.part(context.get(), request.tensor, offset, left);
    use(static_cast<std::byte*>(tensor->data) + offset, left);
    std::vector<std::byte> piece(std::min(left, kPiece));
    write_size(left, stream);
    while (left > 0) {
        const std::span now(piece.data(), std::min(left, kPiece));
        ggml_backend_tensor_get(tensor, now.data(), offset, now.size());
        stream.write(now);
        offset += now.size();
        left -= now.size();
    }
}

void Server::memset_tensor(const MemsetTensor& request) {
    const ggml_context_ptr context = make_context(1);
    ggml_tensor* tensor = memory_.part(context.get(), request.tensor, request.offset, request.size);
    if (request.size == 0) return;
    use(static_cast<std::byte*>(tensor->data) + request.offset, request.size);
    ggml_backend_tensor_memset(tensor, request.value, request.offset, request.size);
}

void Server::copy_tensor(const CopyTensor& request) {
    const ggml_context_ptr context = make_context(2);
    ggml_tensor *from = memory_.part(context.get(), request.src, 0, 0),
                *to = memory_.part(context.get(), request.dst, 0, 0);
    if (from->type != to->type || !ggml_are_same_shape(from, to) || !ggml_are_same_stride(from, to))
        fail(ErrorCode::input, "worker", "a copy between tensors of different shapes");
    const auto *first = static_cast<std::byte*>(from->data), *second = static_cast<std::byte*>(to->data);
    const size_t bytes = ggml_nbytes(from);
    if (from->buffer == to->buffer && first < second + bytes && second < first + bytes)
        fail(ErrorCode::input, "worker", "a copy onto itself");
    use(from->data, bytes);
    use(to->data, bytes);
    if (bytes > 0) ggml_backend_tensor_copy(from, to);
}

void Server::init_tensor(const Tensor& given) {
    const ggml_context_ptr context = make_context(1);
    ggml_tensor* tensor = memory_.part(context.get(), given, 0, 0);
    // Devices that pad rows clear what is behind them.
    const size_t bytes =
        ggml_backend_buft_get_alloc_size(ggml_backend_buffer_get_type(tensor->buffer), tensor);
    const auto* end = static_cast<std::byte*>(ggml_backend_buffer_get_base(tensor->buffer)) +
                      ggml_backend_buffer_get_size(tensor->buffer);
    if (bytes > static_cast<size_t>(end - static_cast<std::byte*>(tensor->data)))
        fail(ErrorCode::input, "worker", "a tensor without room for its padding");
    if (ggml_backend_buffer_init_tensor(tensor->buffer, tensor) != GGML_STATUS_SUCCESS ||
        tensor->extra != nullptr)
        fail(ErrorCode::unsupported, "worker", "a tensor that the device cannot have");
}

uint64_t Server::alloc_size(const GetAllocSize& request) {
    const uint32_t number = device(request.device);
    const ggml_context_ptr context = make_context(1 + GGML_MAX_SRC);
    ggml_tensor* tensor = memory_.tensor(context.get(), request.tensor);
    for (size_t i = 0; i < GGML_MAX_SRC; ++i)
        if (request.srcs[i].id != 0) tensor->src[i] = memory_.tensor(context.get(), request.srcs[i]);
    if (!is_view(tensor) && !ggml_is_empty(tensor))
        if (const std::string problem = problem_of(tensor); !problem.empty())
            fail(ErrorCode::input, "worker", "{}", problem);
    return ggml_backend_buft_get_alloc_size(tensor->buffer != nullptr
                                                ? ggml_backend_buffer_get_type(tensor->buffer)
                                                : ggml_backend_get_default_buffer_type(handles_[number]),
                                            tensor);
}

void Server::free_buffer(uint64_t buffer) {
    ggml_backend_buffer_t handle = memory_.at(buffer);
    for (auto& graph : graphs_) graph.reset();  // their tensors may lie there
    panels_.forget(ggml_backend_buffer_get_base(handle), ggml_backend_buffer_get_size(handle));
    memory_.free(buffer);
}

void Server::take_graph(uint64_t size, Stream& stream) {
    uint32_t number = 0;
    if (size < sizeof number || size > kMostGraphBytes)
        fail(ErrorCode::input, "worker", "a graph of {} bytes, expected at most {}", size, kMostGraphBytes);
    std::vector<std::byte> message(size);
    stream.begin(size);
    stream.read(message);
    std::memcpy(&number, message.data(), sizeof number);
    auto& graph = graphs_[device(number)];
    graph.reset();
    graph.emplace(std::span(message).subspan(sizeof number), memory_, handles_[number]);
    compute(number, false, stream);
}

void Server::compute(uint32_t number, bool again, Stream& stream) {
    ggml_backend_t backend = handles_[number];
    const Graph& graph = *graphs_[number];
    graph.check_numbers();
    Abandoned abandoned{stream};
    const Turn turn(share_);
    const int threads = std::min(threads_.threads(), turn.threads());
    ggml_backend_set_abort_callback_t set_abort = nullptr;
    if (is_cpu(backend)) {
        panels_.prepare(graph.graph());
        auto* set_pool = function_of<void (*)(ggml_backend_t, ggml_threadpool*)>(
            backend, "ggml_backend_cpu_set_threadpool");
        auto* set_threads = function_of<ggml_backend_set_n_threads_t>(backend, "ggml_backend_set_n_threads");
        set_abort =
            function_of<ggml_backend_set_abort_callback_t>(backend, "ggml_backend_set_abort_callback");
        if (set_pool != nullptr && pool_) set_pool(backend, pool_.get());
        if (set_threads != nullptr) set_threads(backend, threads);
        if (set_abort != nullptr) set_abort(backend, Abandoned::asked, &abandoned);
    }
    const auto begin = std::chrono::steady_clock::now();
    const ggml_status status = ggml_backend_graph_compute(backend, graph.graph());
    if (again && threads == threads_.threads())
        threads_.took(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    if (set_abort != nullptr) set_abort(backend, nullptr, nullptr);
    if (abandoned.left) fail(ErrorCode::io, "worker", "the client left during a step");
    if (status != GGML_STATUS_SUCCESS)
        fail(ErrorCode::unsupported, "worker", "the device {} could not compute a graph: {}",
             ggml_backend_name(backend), ggml_errors());
}

}  // namespace refold::rpc
