// What RowTerms and LoopWeights do, by ggml's own operations: low-rank terms, biases and vectors of which
// each row of a step takes those of its own set (a loop, an adapter). The sets of a slot lie one after the
// other in one tensor, as experts do.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "engine/ggml/device_run.h"
#include "engine/ggml/row_terms.h"

namespace refold {

class DeviceTerms {
public:
    // `f32`: as EngineOptions::f32; else factors that were stored in fewer bits are kept in F16. With
    // `changes`, sets may come and go after the first graph.
    DeviceTerms(const DeviceRun& run, bool f32, bool changes) : run_(run), f32_(f32), changes_(changes) {}
    DeviceTerms(const DeviceTerms&) = delete;
    DeviceTerms& operator=(const DeviceTerms&) = delete;

    // The graphs that have been built must not be used after these.
    void put(size_t layer, Slot slot, size_t set, const RowTerms::Factors& factors);
    void put_biases(size_t layer, Slot slot, const std::vector<std::vector<float>>& by_set);
    void put_vectors(size_t layer, Slot slot, const std::vector<std::vector<float>>& by_set);
    void erase(size_t set);
    // To the device, as graphs do when they need it. Throws Error(io) when there is no memory for it.
    void load();

    // For graphs, whose `sets` I32 [tokens] are numbers of sets plus one; 0: none.
    static constexpr int32_t kFirstSet = 1;

    // y + B (A x) + bias of every row's set. x [in, tokens], y [out, tokens], both contiguous. y itself where
    // no set has anything to add. Throws as load() does.
    ggml_tensor* add_to(ggml_context* context, size_t layer, Slot slot, ggml_tensor* y, ggml_tensor* x,
                        ggml_tensor* sets);
    // Whether the vector of this slot differs between sets, and that of every row's set: [n, tokens].
    bool differs(size_t layer, Slot slot) const { return vectors_.contains({layer, slot}); }
    ggml_tensor* vectors(ggml_context* context, size_t layer, Slot slot, ggml_tensor* sets);

    uint64_t bytes() const;

private:
    using LayerSlot = std::pair<size_t, Slot>;
    struct Part {
        int64_t width = 0, rows = 0;
        std::vector<float> values = {};  // [rows][width]; empty: zero
    };
    struct Stack {
        ggml_type type = GGML_TYPE_F32;
        std::vector<Part> sets;
        ggml_context_ptr context;
        ggml_backend_buffer_ptr buffer;
        // The sets with zeros in front and to the size of the largest: [width, rows, sets + 1].
        ggml_tensor* tensor = nullptr;  // null: to be made
    };
    struct Matrix {
        Stack a, b, biases;
    };

    void set_part(Stack& stack, size_t set, Part part);
    ggml_tensor* on_device(Stack& stack, size_t layer);
    ggml_type type_of(DType stored, const std::vector<float>& values) const;

    const DeviceRun& run_;
    bool f32_, changes_;
    size_t sets_ = 0;  // that every tensor has room for
    std::map<LayerSlot, Matrix> matrices_;
    std::map<LayerSlot, Stack> vectors_;
};

}  // namespace refold
