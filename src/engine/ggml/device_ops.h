// The operations of the forward pass (model/forward.h) by ggml's own operations alone, for any backend.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/ggml/device_run.h"
#include "engine/ggml/graph.h"
#include "model/forward_ops.h"

namespace refold {

class DeviceOps {
public:
    // Of a token's experts: I32 [used, tokens] which ones, and F32 [1, used, tokens] their weights.
    struct Routes {
        ggml_tensor *experts = nullptr, *weights = nullptr;
    };
    struct Value {
        ggml_tensor* tensor = nullptr;  // [features, tokens]
        Routes routes{};                // of route()
    };

    DeviceOps(StepGraph& step, const Weights& weights, const KvCache& cache, const StepShape& shape);

    bool has(size_t layer, Slot slot) const { return weights_.has(layer, slot); }
    Value embed(Slot table);
    Value norm(size_t layer, Slot slot, Value x);
    void linear(size_t layer, std::span<const Slot> slots, Value x, std::span<Value> out);
    const AttentionSource& source(size_t layer) const { return network_.topology.source(layer); }
    void rope(size_t layer, Value& q, Value& k);
    void rope(size_t layer, Value& q);
    Value attention(size_t layer, Value q, Value k, Value v);
    Value attention_over_source(size_t layer, Value q) { return attend(layer, q.tensor, false); }
    Value attention_as_source(size_t layer, Value v, bool selected);
    Value activate(Activation activation, Value x);
    Value gated(Activation activation, Value gate, Value up);
    Value route(Value scores);
    Value dispatch(Value x, Value) { return x; }
    void expert_linear(size_t layer, std::span<const Slot> slots, Value x, Value routes,
                       std::span<Value> out);
    Value combine(Value uses, Value routes);
    Value add(Value a, Value b) { return {ggml_add(context_, a.tensor, b.tensor)}; }
    Value subtract(Value a, Value b) { return {ggml_sub(context_, a.tensor, b.tensor)}; }
    Value scale(Value x, float factor) { return {ggml_scale(context_, x.tensor, factor)}; }
    Value softcap(Value x, float cap);
    Value part(Value x, int64_t first, int64_t count);
    Value join(std::span<const Value> values);
    Value scale_features(size_t layer, Slot slot, Value x);
    Value normalized(Value x, int64_t width);
    Value with_rms_of(Value x, Value y);
    Value cut(size_t layer, Value gate);
    Value linear_by_part(size_t layer, Slot slot, Value x);
    Value mix(Value x, Value coefficients);
    Value add_to_each(Value x, int64_t first, Value y);
    Value divide_by_row_norms(Slot, Value x);
    void tap(size_t layer, Tap tap, Value x);
    std::optional<Value> given_input();
    Value select_outputs(Value x);
    Value select_first(Value x);
    Value resume(Value x);
    void store(size_t layer, Value k, Value v);
    void store(size_t layer, Value v);
    Value with_exit_map(size_t layer, Value x) { return add_exit_term(layer, Slot::exit_map, x, x); }
    Value with_exit_output(size_t layer, Value x, Value y) {
        return add_exit_term(layer, Slot::exit_output, x, y);
    }

private:
    ggml_tensor* gelu_tanh(ggml_tensor* x);
    ggml_tensor* contiguous(ggml_tensor* x);
    ggml_tensor* rows_of(ggml_tensor* x, int64_t first, int64_t count);
    // [width, groups, tokens]
    ggml_tensor* groups_of(ggml_tensor* x, int64_t width);
    ggml_tensor* flat(ggml_tensor* x);  // [features, tokens] again
    ggml_tensor* split_heads(ggml_tensor* x);
    // The product for each slot of the plan, of the first ones of `slots`: contiguous, without biases.
    std::vector<ggml_tensor*> products(const LinearPlan& plan, std::span<const Slot> slots, ggml_tensor* x);
    // The plan's matrix [in, out], from its bank.
    ggml_tensor* gathered(const LinearPlan& plan);
    // Rows [first, first + count) of the plan's product.
    ggml_tensor* product(const LinearPlan& plan, ggml_tensor* x, int64_t first, int64_t count);
    ggml_tensor* column_product(const LinearPlan& plan, ggml_tensor* x);
    ggml_tensor* product_of_parts(const LinearPlan& plan, ggml_tensor* x);
    void factored_linear(const FactoredPlan& plan, std::span<const Slot> slots, ggml_tensor* x,
                         std::span<Value> out);
    void base_linear(size_t layer, std::span<const Slot> slots, ggml_tensor* x, std::span<Value> out);
    void add_terms(DeviceTerms& terms, ggml_tensor* sets, size_t layer, std::span<const Slot> slots,
                   ggml_tensor* x, std::span<Value> out);
    ggml_tensor* adapters_of(size_t layer, ggml_tensor* x);
    // Sets of the outputs: an input made once.
    ggml_tensor* of_outputs(ggml_tensor*& sets);
    Value add_exit_term(size_t layer, Slot slot, Value x, Value y);
    // The products of each token with its experts that lie in one storage; zero for its others.
    ggml_tensor* product_of_experts(const ExpertPlan::Weights& weights, const Storage* storage,
                                    ggml_tensor* in, ggml_tensor* numbers);

    // 1 / frequency of each pair.
    ggml_tensor* periods(const Rope& rope);
    // Of the layer's cache.
    const StepGraph::Rows& rows(size_t layer) const {
        return network_.eviction.at(layer) ? step_.kept_ : step_.all_;
    }
    void store_heads(size_t layer, int64_t first_head, ggml_tensor* x);
    // Tokens of the step, or its outputs, whose attention is one operation.
    struct Group {
        SequenceGroup rows;
        bool outputs = false;
        size_t number = 0, first_query = 0;
    };
    std::vector<Group> sequence_groups(size_t layer, int64_t tokens) const;
    // Calls function(group, queries) for all groups: their queries [head_dim, tokens, heads, sequences] of
    // `q` [features, tokens], or null if there is no `q`. Returns [features, tokens] of what it returns,
    // which is [features, queries] of each group.
    template <class Function>
    Value by_group(size_t layer, int64_t tokens, ggml_tensor* q, Function function);
    // Heads of keys or values: [head_dim, rows, heads, sequences]
    ggml_tensor* cached(size_t layer, const Group& group, int64_t first, int64_t count);
    ggml_tensor* mask(size_t layer, const Group& group, ggml_type type = GGML_TYPE_F16);
    Value attend(size_t layer, ggml_tensor* q, bool lends);
    // [features, queries]
    ggml_tensor* attended(size_t layer, const Group& group, ggml_tensor* q);
    // [rows, tokens, heads, sequences]
    ggml_tensor* probabilities(size_t layer, const Group& group, ggml_tensor* q);
    // ALiBi of heads that keep the slopes of the model's whole number of heads: likewise
    ggml_tensor* alibi_of(const std::vector<int64_t>& heads, ggml_tensor* mask);
    // [features, queries]
    ggml_tensor* weighted(size_t layer, const Group& group, ggml_tensor* p);
    // H2O: keeps what the step's tokens give each row of the cache, [cached, heads of keys].
    void keep_sums(size_t layer, ggml_tensor* p);
    void keep(size_t layer, Tap tap, ggml_tensor* x);
    void expand(ggml_tensor* tensor);

    StepGraph& step_;
    const Network& network_;
    const ModelConfig& config_;
    const Weights& weights_;
    const KvCache& cache_;
    const DeviceRun& run_;
    StepShape shape_;
    DeviceTerms *loops_, *adapters_;  // null: no terms by row
    ggml_context* context_;
    std::map<size_t, std::vector<ggml_tensor*>> lent_;  // probabilities, by layer and group
    std::map<const Rope*, ggml_tensor*> periods_;
};

}  // namespace refold
