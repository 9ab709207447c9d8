// What an honest client of a worker sends, as bytes: a graph with every operation that refold's clients use.
#pragma once

#include <ggml-cpp.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/worker/server.h"

namespace refold::rpc {

template <class T>
std::string text_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string message(Command command, const std::string& body) {
    return text_of(command) + text_of(uint64_t{body.size()}) + body;
}

// Bytes that are there already, and answers that nobody reads.
class TextStream : public Stream {
public:
    explicit TextStream(std::string in) : in_(std::move(in)) {}
    std::optional<Command> next() override {
        if (at_ == in_.size()) return std::nullopt;
        return static_cast<Command>(in_[at_++]);
    }
    void begin(uint64_t) override {}
    void read(std::span<std::byte> out) override {
        if (out.size() > in_.size() - at_) fail(ErrorCode::io, "test", "the client left");
        std::memcpy(out.data(), in_.data() + at_, out.size());
        at_ += out.size();
    }
    void write(std::span<const std::byte> bytes) override {
        out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    bool has_left() override { return false; }
    const std::string& out() const { return out_; }

private:
    std::string in_, out_;
    size_t at_ = 0;
};

// Some bytes and one thread.
class SmallShare : public Share {
public:
    static constexpr uint64_t kLimit = 4 << 20;
    bool take(size_t, uint64_t bytes) override {
        if (bytes > kLimit - held_) return false;
        held_ += bytes;
        return true;
    }
    void give_back(size_t, uint64_t bytes) override { held_ -= bytes; }
    uint64_t free(size_t) override { return kLimit - held_; }
    int begin_step() override { return 1; }
    void end_step() override {}
    uint64_t held() const { return held_; }

private:
    uint64_t held_ = 0;
};

// The results, none of which is a view.
inline std::vector<ggml_tensor*> every_operation(ggml_context* c) {
    const auto f32 = [&](int64_t a, int64_t b = 1, int64_t d = 1) {
        return ggml_new_tensor_3d(c, GGML_TYPE_F32, a, b, d);
    };
    const auto i32 = [&](int64_t a, int64_t b = 1) { return ggml_new_tensor_2d(c, GGML_TYPE_I32, a, b); };
    ggml_tensor *x = f32(32, 4), *y = f32(32, 4), *one = f32(32), *heads = f32(32, 2, 4);
    std::vector<ggml_tensor*> out = {
        ggml_add(c, x, one),
        ggml_sub(c, x, y),
        ggml_mul(c, x, y),
        ggml_div(c, x, y),
        ggml_sqr(c, x),
        ggml_sqrt(c, ggml_sqr(c, x)),
        ggml_silu(c, x),
        ggml_tanh(c, x),
        ggml_gelu_erf(c, x),
        ggml_swiglu_split(c, x, y),
        ggml_scale_bias(c, x, 2, 1),
        ggml_clamp(c, x, -1, 1),
        ggml_norm(c, x, 1e-5F),
        ggml_mul(c, ggml_rms_norm(c, x, 1e-5F), one),
        ggml_sum_rows(c, x),
        ggml_mean(c, x),
        ggml_repeat_4d(c, one, 32, 4, 2, 1),
        ggml_concat(c, x, y, 1),
        ggml_cont(c, ggml_transpose(c, x)),
        ggml_cast(c, x, GGML_TYPE_F16),
        ggml_argsort(c, x, GGML_SORT_ORDER_DESC),
        ggml_soft_max(c, x),
        ggml_get_rows(c, y, i32(3)),
        ggml_rope_ext(c, heads, i32(4), nullptr, 32, GGML_ROPE_TYPE_NEOX, 0, 10000, 1, 0, 1, 0, 0)};
    for (const ggml_type type :
         {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0})
        out.push_back(ggml_mul_mat(c, ggml_new_tensor_2d(c, type, 32, 48), x));
    ggml_tensor* chosen = ggml_argsort_top_k(c, ggml_mul_mat(c, f32(32, 3), x), 2);
    ggml_tensor* by_experts = ggml_mul_mat_id(c, f32(32, 8, 3), ggml_reshape_3d(c, x, 32, 1, 4), chosen);
    out.push_back(ggml_add_id(c, by_experts, f32(8, 3), chosen));
    ggml_tensor* cache = ggml_new_tensor_2d(c, GGML_TYPE_F16, 32, 8);
    out.push_back(ggml_mul_mat(c, ggml_set_rows(c, cache, x, ggml_new_tensor_1d(c, GGML_TYPE_I64, 4)), x));
    ggml_tensor* keys = ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 8, 2);
    ggml_tensor* values = ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 8, 2);
    ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, 8, 4);
    ggml_tensor* queries = ggml_permute(c, heads, 0, 2, 1, 3);
    ggml_tensor* attention = ggml_flash_attn_ext(c, queries, keys, values, mask, 0.2F, 0, 0);
    ggml_flash_attn_ext_add_sinks(attention, f32(2));
    out.push_back(attention);
    return out;
}

// Bytes of the n-th given tensor: numbers that its type and use allow.
inline std::string content_of(const ggml_tensor* t, size_t n) {
    std::string out(ggml_nbytes(t), '\0');
    const auto count = static_cast<size_t>(ggml_nelements(t));
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = 0.25F + static_cast<float>((i * 7 + n * 3) % 11) / 8.0F;
    if (t->type == GGML_TYPE_F32)
        std::memcpy(out.data(), numbers.data(), out.size());
    else if (t->type == GGML_TYPE_I32 || t->type == GGML_TYPE_I64)
        for (size_t i = 0; i < count; ++i)
            out[i * ggml_type_size(t->type)] = static_cast<char>((i * 2 + 1) % 4);
    else if (t->type == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(numbers.data(), reinterpret_cast<ggml_fp16_t*>(out.data()),
                              t->ne[0] * ggml_nrows(t));
    else if (t->type == GGML_TYPE_BF16)
        ggml_fp32_to_bf16_row(numbers.data(), reinterpret_cast<ggml_bf16_t*>(out.data()),
                              t->ne[0] * ggml_nrows(t));
    else
        ggml_quantize_chunk(t->type, numbers.data(), out.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
    return out;
}

// The parts of a graph's message, in its order.
struct GraphMessage {
    uint32_t device = 0;
    std::vector<uint64_t> nodes;
    std::vector<Tensor> tensors;

    std::string text() const {
        std::string body = text_of(device) + text_of(static_cast<uint32_t>(nodes.size()));
        for (const uint64_t node : nodes) body += text_of(node);
        body += text_of(static_cast<uint32_t>(tensors.size()));
        for (const Tensor& t : tensors) body += text_of(t);
        return message(Command::graph_compute, body);
    }
    // The first with this operation.
    Tensor& of(ggml_op op) {
        return *std::ranges::find_if(tensors,
                                     [&](const Tensor& t) { return t.op == static_cast<uint32_t>(op); });
    }
    Tensor& by_id(uint64_t id) {
        return *std::ranges::find_if(tensors, [&](const Tensor& t) { return t.id == id; });
    }
};

// A client that has one buffer, number 1.
class HonestClient {
public:
    static constexpr uint64_t kBuffer = 1, kAddress = uint64_t{1} << 44;

    HonestClient() : context_(ggml_init({size_t{4} << 20, nullptr, true})) {
        results_ = every_operation(context_.get());
        graph_ = ggml_new_graph(context_.get());
        for (ggml_tensor* result : results_) ggml_build_forward_expand(graph_, result);
        for (ggml_tensor* t = ggml_get_first_tensor(context_.get()); t != nullptr;
             t = ggml_get_next_tensor(context_.get(), t)) {
            if (t->view_src != nullptr) {
                t->data = static_cast<char*>(t->view_src->data) + t->view_offs;
                continue;
            }
            t->data = reinterpret_cast<void*>(kAddress + bytes_);
            bytes_ += (ggml_nbytes(t) + 63) / 64 * 64;
            if (t->op == GGML_OP_NONE) given_.push_back(t);
        }
    }

    std::string allocate() const { return message(Command::alloc_buffer, text_of(AllocBuffer{0, bytes_})); }
    // Of tensors that are given.
    std::string set(size_t number) const {
        return set(described(given_[number]), 0, content_of(given_[number], number));
    }
    static std::string set(const Tensor& tensor, uint64_t offset, const std::string& content) {
        return message(Command::set_tensor, text_of(SetTensor{tensor, 0, offset}) + content);
    }
    std::string prepared() const {
        std::string out = allocate();
        for (size_t i = 0; i < given_.size(); ++i) out += set(i);
        return out;
    }
    GraphMessage graph() const {
        GraphMessage out;
        std::set<const ggml_tensor*> seen;
        for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
            out.nodes.push_back(reinterpret_cast<uint64_t>(ggml_graph_node(graph_, i)));
            add(ggml_graph_node(graph_, i), out, seen);
        }
        return out;
    }
    static std::string again() { return message(Command::graph_recompute, text_of(OfDevice{0})); }
    std::string get(size_t result) const {
        const ggml_tensor* t = results_[result];
        return message(Command::get_tensor, text_of(GetTensor{described(t), 0, ggml_nbytes(t)}));
    }
    std::string get_all() const {
        std::string out;
        for (size_t i = 0; i < results_.size(); ++i) out += get(i);
        return out;
    }
    std::string whole() const { return prepared() + graph().text() + get_all(); }

    const std::vector<ggml_tensor*>& results() const { return results_; }
    const std::vector<ggml_tensor*>& given() const { return given_; }
    uint64_t bytes() const { return bytes_; }

    static Tensor described(const ggml_tensor* t) {
        Tensor out{};
        out.id = reinterpret_cast<uint64_t>(t);
        out.type = t->type;
        out.buffer = kBuffer;
        std::ranges::copy(t->ne, out.ne.begin());
        std::ranges::copy(t->nb, out.nb.begin());
        out.op = t->op;
        std::ranges::copy(t->op_params, out.op_params.begin());
        for (size_t i = 0; i < GGML_MAX_SRC; ++i) out.src[i] = reinterpret_cast<uint64_t>(t->src[i]);
        out.view_src = reinterpret_cast<uint64_t>(t->view_src);
        out.view_offs = t->view_offs;
        out.data = reinterpret_cast<uint64_t>(t->data);
        return out;
    }

private:
    static void add(const ggml_tensor* t, GraphMessage& out, std::set<const ggml_tensor*>& seen) {
        if (t == nullptr || !seen.insert(t).second) return;
        for (const ggml_tensor* source : t->src) add(source, out, seen);
        add(t->view_src, out, seen);
        out.tensors.push_back(described(t));
    }

    ggml_context_ptr context_;
    std::vector<ggml_tensor*> results_, given_;
    ggml_cgraph* graph_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace refold::rpc
