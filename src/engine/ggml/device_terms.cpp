#include "engine/ggml/device_terms.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"

namespace refold {
namespace {

void write_row(ggml_type type, const float* from, int64_t count, std::byte* to) {
    if (type == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(from, reinterpret_cast<ggml_fp16_t*>(to), count);
    else
        std::copy_n(from, count, reinterpret_cast<float*>(to));
}

}  // namespace

ggml_type DeviceTerms::type_of(DType stored, const std::vector<float>& values) const {
    constexpr float kMostF16 = 65504;
    const bool exact = f32_ || stored == DType::F32 ||
                       !std::ranges::all_of(values, [](float x) { return std::abs(x) <= kMostF16; });
    return exact ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

void DeviceTerms::set_part(Stack& stack, size_t set, Part part) {
    if (stack.sets.size() <= set) stack.sets.resize(set + 1);
    stack.sets[set] = std::move(part);
    stack.tensor = nullptr;
    if (set < sets_) return;
    // All tensors get room for it.
    sets_ = set + 1;
    for (auto& [key, matrix] : matrices_) matrix.a.tensor = matrix.b.tensor = matrix.biases.tensor = nullptr;
    for (auto& [key, vectors] : vectors_) vectors.tensor = nullptr;
}

void DeviceTerms::put(size_t layer, Slot slot, size_t set, const RowTerms::Factors& f) {
    Matrix& matrix = matrices_[{layer, slot}];
    const auto widen = [&](Stack& stack, DType stored, const std::vector<float>& values) {
        const ggml_type type = type_of(stored, values);
        if (stack.sets.empty() || type == GGML_TYPE_F32) stack.type = type;
    };
    widen(matrix.a, f.a_type, f.a);
    widen(matrix.b, f.b_type, f.b);
    const auto rank = static_cast<size_t>(f.rank);
    set_part(matrix.a, set, {static_cast<int64_t>(f.a.size() / rank), f.rank, f.a});
    set_part(matrix.b, set, {f.rank, static_cast<int64_t>(f.b.size() / rank), f.b});
}

void DeviceTerms::put_biases(size_t layer, Slot slot, const std::vector<std::vector<float>>& by_set) {
    for (size_t set = 0; set < by_set.size(); ++set)
        set_part(matrices_[{layer, slot}].biases, set,
                 {static_cast<int64_t>(by_set[set].size()), 1, by_set[set]});
}

void DeviceTerms::put_vectors(size_t layer, Slot slot, const std::vector<std::vector<float>>& by_set) {
    for (size_t set = 0; set < by_set.size(); ++set)
        set_part(vectors_[{layer, slot}], set, {static_cast<int64_t>(by_set[set].size()), 1, by_set[set]});
}

void DeviceTerms::erase(size_t set) {
    const auto is_zero = [](const Part& part) { return part.values.empty(); };
    for (auto entry = matrices_.begin(); entry != matrices_.end();) {
        bool empty = true;
        for (Stack* stack : {&entry->second.a, &entry->second.b, &entry->second.biases}) {
            if (set < stack->sets.size()) stack->sets[set] = {};
            stack->tensor = nullptr;
            empty = empty && std::ranges::all_of(stack->sets, is_zero);
        }
        entry = empty ? matrices_.erase(entry) : std::next(entry);
    }
}

ggml_tensor* DeviceTerms::on_device(Stack& stack, size_t layer) {
    if (stack.tensor != nullptr) return stack.tensor;
    int64_t width = 0, rows = 0;
    for (const Part& part : stack.sets) {
        width = std::max(width, part.width);
        rows = std::max(rows, part.rows);
    }
    if (width == 0) return nullptr;
    stack.buffer.reset();
    stack.context = make_context(1);
    ggml_tensor* tensor = ggml_new_tensor_3d(stack.context.get(), stack.type, width, rows,
                                             static_cast<int64_t>(sets_) + kFirstSet);
    stack.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(stack.context.get(), run_.memory(layer)));
    if (!stack.buffer)
        fail(ErrorCode::io, "engine", "cannot allocate {} bytes for LoRA on {}: not enough memory",
             ggml_nbytes(tensor), run_.name());
    ggml_backend_buffer_set_usage(stack.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::vector<std::byte> all(ggml_nbytes(tensor));
    for (size_t set = 0; set < stack.sets.size(); ++set) {
        const Part& part = stack.sets[set];
        std::byte* to = all.data() + (set + kFirstSet) * tensor->nb[2];
        for (int64_t r = 0; r < part.rows && !part.values.empty(); ++r)
            write_row(stack.type, part.values.data() + r * part.width, part.width,
                      to + static_cast<size_t>(r) * tensor->nb[1]);
    }
    ggml_backend_tensor_set(tensor, all.data(), 0, all.size());
    if (!changes_)
        for (Part& part : stack.sets) part.values = {};
    return stack.tensor = tensor;
}

void DeviceTerms::load() {
    for (auto& [key, matrix] : matrices_)
        for (Stack* stack : {&matrix.a, &matrix.b, &matrix.biases}) on_device(*stack, key.first);
    for (auto& [key, vectors] : vectors_) on_device(vectors, key.first);
}

ggml_tensor* DeviceTerms::add_to(ggml_context* context, size_t layer, Slot slot, ggml_tensor* y,
                                 ggml_tensor* x, ggml_tensor* sets) {
    const auto found = matrices_.find({layer, slot});
    if (found == matrices_.end()) return y;
    Matrix& matrix = found->second;
    const int64_t tokens = x->ne[1];
    if (ggml_tensor* a = on_device(matrix.a, layer); a != nullptr) {
        ggml_tensor* ids = ggml_reshape_2d(context, sets, 1, tokens);
        ggml_tensor* ax = ggml_mul_mat_id(context, a, ggml_reshape_3d(context, x, x->ne[0], 1, tokens), ids);
        ggml_tensor* term = ggml_mul_mat_id(context, on_device(matrix.b, layer), ax, ids);
        y = ggml_add(context, y, ggml_reshape_2d(context, term, y->ne[0], tokens));
    }
    if (ggml_tensor* biases = on_device(matrix.biases, layer); biases != nullptr)
        y = ggml_add(context, y,
                     ggml_get_rows(context, ggml_reshape_2d(context, biases, y->ne[0], biases->ne[2]), sets));
    return y;
}

ggml_tensor* DeviceTerms::vectors(ggml_context* context, size_t layer, Slot slot, ggml_tensor* sets) {
    ggml_tensor* all = on_device(vectors_.at({layer, slot}), layer);
    return ggml_get_rows(context, ggml_reshape_2d(context, all, all->ne[0], all->ne[2]), sets);
}

uint64_t DeviceTerms::bytes() const {
    uint64_t bytes = 0;
    const auto add = [&](const Stack& stack) {
        if (stack.buffer) bytes += ggml_backend_buffer_get_size(stack.buffer.get());
    };
    for (const auto& [key, matrix] : matrices_) {
        add(matrix.a);
        add(matrix.b);
        add(matrix.biases);
    }
    for (const auto& [key, vectors] : vectors_) add(vectors);
    return bytes;
}

}  // namespace refold
