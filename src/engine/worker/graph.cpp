#include "engine/worker/graph.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/error.h"
#include "engine/ggml/handles.h"
#include "engine/worker/sorting.h"

namespace refold::rpc {
namespace {

// Takes numbers and structures off the front of a message.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    template <class T>
    T take() {
        T out;
        std::memcpy(&out, bytes(sizeof out).data(), sizeof out);
        return out;
    }
    // A number of things of so many bytes each, all of which are there.
    uint32_t count(size_t each) {
        const auto out = take<uint32_t>();
        if (out > bytes_.size() / each) fail(ErrorCode::input, "worker", "a graph that ends too early");
        return out;
    }
    bool at_end() const { return bytes_.empty(); }

private:
    std::span<const std::byte> bytes(size_t size) {
        if (size > bytes_.size()) fail(ErrorCode::input, "worker", "a graph that ends too early");
        const auto out = bytes_.first(size);
        bytes_ = bytes_.subspan(size);
        return out;
    }

    std::span<const std::byte> bytes_;
};

struct Sent {
    Tensor given;
    ggml_tensor* tensor = nullptr;
    bool computed = false;  // one of the graph's nodes
    bool placed = false;    // among the nodes that were added
};

bool is_number_below(const ggml_tensor* t, const std::byte* at, int64_t bound) {
    int64_t number = 0;
    if (t->type == GGML_TYPE_I32) {
        int32_t narrow = 0;
        std::memcpy(&narrow, at, sizeof narrow);
        number = narrow;
    } else {
        std::memcpy(&number, at, sizeof number);
    }
    return number >= 0 && number < bound;
}

// ggml_cast() names its result as what it copies to.
bool is_own(const Tensor& given, size_t source) {
    return given.op == GGML_OP_CPY && source == 1 && given.src[source] == given.id;
}

// A view's view source is the tensor that owns the memory, and its place there is its data.
void set_view_source(ggml_tensor* view, ggml_tensor* source, uint64_t offset) {
    if (source->view_src != nullptr) fail(ErrorCode::input, "worker", "a view of a view");
    if (view->buffer != nullptr &&
        (source->buffer != view->buffer || static_cast<std::byte*>(source->data) + offset != view->data))
        fail(ErrorCode::input, "worker", "a view that does not lie in its tensor");
    view->view_src = source;
    view->view_offs = offset;
}

}  // namespace

bool is_cpu(ggml_backend_t backend) {
    return ggml_backend_dev_type(ggml_backend_get_device(backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

Graph::Graph(std::span<const std::byte> message, const Memory& memory, ggml_backend_t backend) {
    Reader reader(message);
    std::vector<uint64_t> nodes(reader.count(sizeof(uint64_t)));
    for (uint64_t& id : nodes) id = reader.take<uint64_t>();
    const uint32_t count = reader.count(sizeof(Tensor));
    if (nodes.empty() || count == 0) fail(ErrorCode::input, "worker", "an empty graph");

    context_ = make_context(count, ggml_graph_overhead_custom(count, false));
    if (!context_) fail(ErrorCode::io, "worker", "no memory for a graph of {} tensors", count);
    // ggml's client sends the sources of a tensor before it, so that there are no cycles.
    std::vector<Sent> sent(count);
    std::unordered_map<uint64_t, Sent*> by_id;
    const auto find = [&](uint64_t id) -> Sent& {
        const auto found = by_id.find(id);
        if (found == by_id.end())
            fail(ErrorCode::input, "worker", "a graph refers to a tensor that it lacks");
        return *found->second;
    };
    for (Sent& own : sent) {
        own.given = reader.take<Tensor>();
        const Tensor& given = own.given;
        own.tensor = memory.tensor(context_.get(), given);
        for (size_t i = 0; i < GGML_MAX_SRC; ++i)
            if (given.src[i] != 0)
                own.tensor->src[i] = is_own(given, i) ? own.tensor : find(given.src[i]).tensor;
        if (given.view_src != 0) set_view_source(own.tensor, find(given.view_src).tensor, given.view_offs);
        if (given.id == 0 || !by_id.emplace(given.id, &own).second)
            fail(ErrorCode::input, "worker", "a graph with two tensors of one name");
    }
    if (!reader.at_end()) fail(ErrorCode::input, "worker", "a graph with more than its tensors");

    for (const uint64_t id : nodes) find(id).computed = true;
    // What was computed elsewhere, or before, is given.
    for (Sent& own : sent) {
        if (own.computed) continue;
        own.tensor->op = GGML_OP_NONE;
        std::ranges::fill(own.tensor->src, nullptr);
    }
    std::unordered_map<const ggml_tensor*, int32_t> uses;
    for (const Sent& own : sent) {
        if (!own.computed) continue;
        for (ggml_tensor* source : own.tensor->src)
            if (source != nullptr) ++uses[source];
    }
    graph_ = ggml_new_graph_custom(context_.get(), count, false);
    for (const uint64_t id : nodes) {
        Sent& own = find(id);
        if (own.placed) fail(ErrorCode::input, "worker", "a graph with one node twice");
        own.placed = true;
        for (const uint64_t source : own.given.src)
            if (source != 0 && find(source).computed && !find(source).placed)  // itself is
                fail(ErrorCode::input, "worker", "a graph that is not in the order of its operations");
        check(own.tensor, backend);
        // What another graph uses as well must not be fused away.
        if (own.given.use_count > uses[own.tensor]) own.tensor->flags |= GGML_TENSOR_FLAG_OUTPUT;
        ggml_build_forward_expand(graph_, own.tensor);
        if (is_view(own.tensor) || ggml_is_empty(own.tensor)) continue;
        if (const Numbers numbers = numbers_of(own.tensor); numbers.tensor != nullptr) add(numbers);
    }
    if (!is_cpu(backend)) return;
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) sort_safely(ggml_graph_node(graph_, i));
}

void Graph::check(const ggml_tensor* operation, ggml_backend_t backend) const {
    if (is_view(operation) || ggml_is_empty(operation)) return;
    if (const std::string problem = problem_of(operation); !problem.empty())
        fail(ErrorCode::input, "worker", "{}", problem);
    const auto check_memory = [&](const ggml_tensor* t) {
        if (t->buffer == nullptr ||
            !ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(t->buffer)))
            fail(ErrorCode::input, "worker", "{} with a tensor that is not in the memory of its device",
                 ggml_op_name(operation->op));
    };
    check_memory(operation);
    for (const ggml_tensor* source : operation->src)
        if (source != nullptr) check_memory(source);
    if (!ggml_backend_supports_op(backend, operation))
        fail(ErrorCode::unsupported, "worker", "the device {} lacks the operation {}",
             ggml_backend_name(backend), ggml_op_desc(operation));
}

// The graph so far ends with the operation that takes the numbers. Tensors may lie anywhere, so what counts
// is who writes to their memory last.
void Graph::add(const Numbers& numbers) {
    const auto begin = [](const ggml_tensor* t) { return static_cast<const std::byte*>(t->data); };
    const auto end = [&](const ggml_tensor* t) { return begin(t) + ggml_nbytes(t); };
    const ggml_tensor* t = numbers.tensor;
    for (int i = ggml_graph_n_nodes(graph_); i-- > 0;) {
        const ggml_tensor* written = ggml_graph_node(graph_, i);
        if (is_view(written) || ggml_is_empty(written) || written->buffer != t->buffer ||
            begin(written) >= end(t) || begin(t) >= end(written))
            continue;
        const ggml_tensor* owner = t->view_src != nullptr ? t->view_src : t;
        const bool within = written == owner && begin(written) <= begin(t) && end(t) <= end(written) &&
                            static_cast<size_t>(begin(t) - begin(written)) % sizeof(int32_t) == 0 &&
                            ggml_is_contiguous(written);
        if (within && gives_numbers_below(written, numbers.bound)) return;
        fail(ErrorCode::input, "worker", "numbers of rows or matrices that {} writes in the same graph",
             ggml_op_desc(written));
    }
    numbers_.push_back(numbers);
}

void Graph::check_numbers() const {
    std::vector<std::byte> bytes;
    const ggml_tensor* copied = nullptr;
    for (const auto& [t, bound] : numbers_) {
        if (t != copied) {
            bytes.resize(ggml_nbytes(t));
            ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
            copied = t;
        }
        for (int64_t i3 = 0; i3 < t->ne[3]; ++i3)
            for (int64_t i2 = 0; i2 < t->ne[2]; ++i2)
                for (int64_t i1 = 0; i1 < t->ne[1]; ++i1)
                    for (int64_t i0 = 0; i0 < t->ne[0]; ++i0) {
                        const size_t at =
                            static_cast<size_t>(i0) * t->nb[0] + static_cast<size_t>(i1) * t->nb[1] +
                            static_cast<size_t>(i2) * t->nb[2] + static_cast<size_t>(i3) * t->nb[3];
                        if (!is_number_below(t, bytes.data() + at, bound))
                            fail(ErrorCode::input, "worker",
                                 "a number of a row or matrix that is not below {}", bound);
                    }
    }
}

}  // namespace refold::rpc
