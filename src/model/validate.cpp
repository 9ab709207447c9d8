#include "model/validate.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/error.h"

namespace refold {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Checks the expression of one slot of one layer (or of the model).
class SlotCheck {
public:
    SlotCheck(const Model& model, size_t layer, Slot slot)
        : model_(model),
          slot_(slot),
          shape_(slot_shape(slot, model.config, layer)),
          where_(layer == kWholeModel ? slot_name(slot)
                                      : fmt::format("layer {} {}", layer, slot_name(slot))) {}

    void missing() const { fail(ErrorCode::input, "topology", "{} is missing", where_); }
    void unknown() const {
        fail(ErrorCode::input, "topology", "{}: not a slot of this place in family '{}'", where_,
             model_.family->name);
    }
    void no_such_module() const {
        fail(ErrorCode::input, "topology", "{}: the layer's size says that it has no such module", where_);
    }

    void second_prefix() const {
        fail(ErrorCode::input, "topology", "{}: the layer has {} already", where_,
             slot_name(Slot::attn_prefix));
    }

    void replaced() const {
        fail(ErrorCode::input, "topology", "{}: the layer takes its attention from another one", where_);
    }

    void no_use() const {
        fail(ErrorCode::input, "topology", "{}: the layer has no use for it: {}", where_,
             slot_ == Slot::attn_comp_v ? "its attention does not weight values with another one's "
                                          "probabilities"
                                        : "it has no attention");
    }

    // Tokens exit at the end of every loop but the last, whose end is that of the model.
    void exit(size_t layer, const Expression& expression) const {
        const Topology& topology = model_.topology;
        const size_t length = topology.layers.size() / static_cast<size_t>(topology.loops);
        if ((layer + 1) % length != 0 || layer + 1 == topology.layers.size())
            fail(ErrorCode::input, "topology",
                 "{}: tokens do not exit here, but after a loop before the last", where_);
        const auto* factors = std::get_if<LowRank>(&expression);
        if (factors == nullptr || factors->transposed)
            fail(ErrorCode::input, "topology", "{}: what an exit adds is a product of two factors", where_);
    }

    void operator()(const Dense& dense) const {
        const Tensor& tensor = find_any(dense.tensor);
        // llama.cpp has gains of heads as rows of heads, and biases of experts as rows of experts.
        const bool by_head = is_vector(slot_) && tensor.elements() == shape_.in &&
                             (belongs_to_experts(slot_) ||
                              (properties(slot_).units && tensor.row_elements() == model_.config.head_dim));
        if (!by_head && (tensor.row_elements() != shape_.in || tensor.rows() != shape_.out)) {
            fail(ErrorCode::input, "topology", "{}: tensor '{}' has shape {}, expected [{}, {}]", where_,
                 dense.tensor, shape_text(tensor.shape), shape_.in, shape_.out);
        }
        if (is_vector(slot_) || is_prefix(slot_)) return need_f32(dense.tensor);
        if (consists_of_experts(slot_)) find(dense.tensor);
        if (tensor.rows() % tensor.fold() != 0)
            fail(ErrorCode::input, "topology",
                 "{}: {} rows of {} elements of tensor '{}' are no whole blocks of {}", where_, tensor.rows(),
                 tensor.row_elements(), dense.tensor, name(tensor.type));
    }

    void operator()(const Heads& heads) const {
        if (!consists_of_blocks(slot_)) {
            fail(ErrorCode::input, "topology",
                 "{}: only attn.q, attn.k, attn.v and attn.o consist of heads, and only matrices of experts "
                 "of "
                 "experts",
                 where_);
        }
        const int64_t head_dim = block_size(slot_, model_.config);
        const bool columns = heads_are_columns(slot_);
        int64_t total = 0;
        for (const auto& run : heads.runs) {
            const Tensor& tensor = find(run.tensor);
            const int64_t along = columns ? tensor.row_elements() : tensor.rows();
            const int64_t across = columns ? tensor.rows() : tensor.row_elements();
            const int64_t expected = columns ? shape_.out : shape_.in;
            if (across != expected || along % head_dim != 0) {
                fail(ErrorCode::input, "topology",
                     "{}: tensor '{}' of shape {} does not consist of heads of {} x {}", where_, run.tensor,
                     shape_text(tensor.shape), head_dim, expected);
            }
            const int64_t stored = along / head_dim;
            if (run.count <= 0 || run.first < 0 || run.first >= stored || run.count > stored - run.first) {
                fail(ErrorCode::input, "topology", "{}: heads {}..{} of tensor '{}', which has {}", where_,
                     run.first, run.first + run.count - 1, run.tensor, stored);
            }
            const int64_t block = block_elements(tensor.type);
            if (columns && (run.first * head_dim % block != 0 || run.count * head_dim % block != 0)) {
                fail(ErrorCode::input, "topology",
                     "{}: columns of heads {}..{} of '{}' are not whole {} blocks of {}", where_, run.first,
                     run.first + run.count - 1, run.tensor, name(tensor.type), block);
            }
            total += run.count;
        }
        if (const int64_t needed = (columns ? shape_.in : shape_.out) / head_dim; total != needed)
            fail(ErrorCode::input, "topology", "{}: {} heads given, {} needed", where_, total, needed);
    }

    void operator()(const LowRank& e) const {
        need_matrix();
        const int64_t in = e.transposed ? shape_.out : shape_.in, out = e.transposed ? shape_.in : shape_.out;
        const int64_t rank = find(e.u).row_elements();
        need_shape(e.u, {rank, out});
        need_shape(e.v, {in, rank});
        if (e.scale.empty()) return;
        need_f32(e.scale);
        need_row(e.scale, rank, e.row);
    }

    void operator()(const Tucker& e) const {
        need_matrix();
        const Tensor& core = find(e.core);
        if (core.shape.size() < 3 || core.shape.size() > 4)
            fail(ErrorCode::input, "topology", "{}: core '{}' has shape {}, expected 4 dimensions", where_,
                 e.core, shape_text(core.shape));
        const int64_t heads = core.shape.size() == 4 ? core.shape[3] : 1;
        // A slot without heads is one head as wide as itself.
        const int64_t along = e.transposed ? shape_.in : shape_.out;
        const int64_t width = consists_of_heads(slot_) && heads > 1 ? model_.config.head_dim
                              : heads > 1                           ? 0
                                                                    : along;
        const int64_t slot_heads = width > 0 ? along / width : 0;
        if (slot_heads == 0 || heads % slot_heads != 0 || (e.transposed && heads != slot_heads)) {
            fail(ErrorCode::input, "topology", "{}: core '{}' has {} heads, the slot {}", where_, e.core,
                 heads, slot_heads);
        }
        need_shape(e.model, {e.transposed ? shape_.out : shape_.in, core.shape[0]});
        need_shape(e.head, {width, core.shape[1]});
        need_f32(e.head);
        need_f32(e.roles);
        const Tensor& roles = find(e.roles);
        need_shape(e.roles, {roles.row_elements(), core.shape[2]});
        if (e.role < 0 || e.role >= roles.row_elements())
            fail(ErrorCode::input, "topology", "{}: role {} of '{}', which has {}", where_, e.role, e.roles,
                 roles.row_elements());
        if (e.halves && width % 2 != 0)
            fail(ErrorCode::input, "topology", "{}: heads of {} rows have no halves", where_, width);
    }

    void operator()(const Plus& e) const {
        std::visit([&](const auto& base) { (*this)(base); }, e.base);
        (*this)(e.term);
    }

    // Which rows `ids` lists is checked where they are read: row_parts.h.
    void operator()(const RowParts& e) const {
        if (properties(slot_).quantized != QuantizedAs::embedding)
            fail(ErrorCode::input, "topology", "{}: only the rows of embedding and output lie in parts",
                 where_);
        if (e.parts.size() > kMostRowParts)
            fail(ErrorCode::input, "topology", "{}: rows in {} parts, at most {} are possible", where_,
                 e.parts.size(), kMostRowParts);
        if (std::set(e.parts.begin(), e.parts.end()).size() != e.parts.size())
            fail(ErrorCode::input, "topology", "{}: a tensor stands twice among the parts", where_);
        int64_t rows = 0, last = 0;
        for (const auto& part : e.parts) {
            const Tensor& tensor = find_any(part);
            last = tensor.rows();
            rows += last;
            if (tensor.row_elements() != shape_.in || last % tensor.fold() != 0)
                fail(ErrorCode::input, "topology",
                     "{}: tensor '{}' of type {} and shape {} does not hold rows of {} elements", where_,
                     part, name(tensor.type), shape_text(tensor.shape), shape_.in);
        }
        if (rows != shape_.out)
            fail(ErrorCode::input, "topology", "{}: {} rows in all parts, {} needed", where_, rows,
                 shape_.out);
        need_f32(e.ids);
        need_shape(e.ids, {rows - last, 1});
    }

private:
    const Tensor& find(const std::string& tensor_name) const {
        const Tensor& tensor = find_any(tensor_name);
        if (tensor.fold() > 1)
            fail(ErrorCode::input, "topology", "{}: rows of tensor '{}' are no whole blocks of {}", where_,
                 tensor_name, name(tensor.type));
        return tensor;
    }
    const Tensor& find_any(const std::string& name) const {
        const auto found = model_.tensors.find(name);
        if (found == model_.tensors.end())
            fail(ErrorCode::input, "topology", "{}: refers to tensor '{}', which is not in the file", where_,
                 name);
        return found->second;
    }
    void need_matrix() const {
        if (!is_matrix(slot_))
            fail(ErrorCode::input, "topology", "{}: only matrices are made of factors", where_);
    }
    // Row elements and rows.
    void need_shape(const std::string& tensor_name, std::array<int64_t, 2> expected) const {
        const Tensor& tensor = find(tensor_name);
        if (tensor.row_elements() != expected[0] || tensor.rows() != expected[1])
            fail(ErrorCode::input, "topology", "{}: tensor '{}' has shape {}, expected [{}, {}]", where_,
                 tensor_name, shape_text(tensor.shape), expected[0], expected[1]);
    }
    void need_row(const std::string& tensor_name, int64_t elements, int64_t row) const {
        const Tensor& tensor = find(tensor_name);
        if (tensor.row_elements() != elements || row < 0 || row >= tensor.rows())
            fail(ErrorCode::input, "topology", "{}: row {} of {} elements of tensor '{}' of shape {}", where_,
                 row, elements, tensor_name, shape_text(tensor.shape));
    }
    void need_f32(const std::string& tensor_name) const {
        if (const DType type = find_any(tensor_name).type; type != DType::F32)
            fail(ErrorCode::unsupported, "topology", "{}: tensor '{}' has type {}, expected F32", where_,
                 tensor_name, name(type));
    }

    const Model& model_;
    Slot slot_;
    SlotShape shape_;
    std::string where_;
};

// Methods may add it to what the family describes.
bool may_be_added(const Model& model, Slot slot) {
    if (properties(slot).scope == SlotScope::model || (is_prefix(slot) && model.config.n_prefix == 0))
        return false;
    return properties(slot).origin != SlotOrigin::family;
}

void validate_source(const Model& model, size_t l, const AttentionSource& source) {
    const ModelConfig& c = model.config;
    const auto refuse = [&](const std::string& why) {
        fail(ErrorCode::input, "topology", "layer {} takes its attention from elsewhere: {}", l, why);
    };
    if (l >= model.topology.layers.size()) refuse("there is no such layer");
    if (source.probabilities && source.kv) refuse("either probabilities or keys and values can be given");
    const size_t from = source.from(l);
    if (from >= l) refuse(fmt::format("layer {} is not an earlier one", from));
    if (!model.topology.source(from).own()) refuse(fmt::format("layer {} has none of its own", from));
    if (c.n_head_kv_of(l) == 0 || c.n_head_kv_of(l) != c.n_head_kv_of(from))
        refuse(fmt::format("it has {} key/value heads, layer {} has {}", c.n_head_kv_of(l), from,
                           c.n_head_kv_of(from)));
    if (!c.causal || c.n_prefix > 0)
        fail(ErrorCode::unsupported, "topology",
             "layer {}: attention from another layer is for decoders without prefixes", l);
}

bool is_weight_of(Slot slot, bool attention) {
    const bool matrix = is_matrix(slot) || is_prefix(slot);
    return matrix && !is_compensation(slot) &&
           (attention ? belongs_to_attention(slot) : belongs_to_ffn(slot));
}

// A W_c that adds to something the layer does not compute.
bool is_unused_compensation(const Model& model, size_t layer, Slot slot) {
    if (slot == Slot::attn_comp_v) return !model.topology.source(layer).probabilities;
    return (slot == Slot::attn_comp_o || slot == Slot::attn_comp_norm) &&
           model.config.n_head_kv_of(layer) == 0;
}

// Vectors, or keys and values.
void check_prefix(const Model& model, const Slots& slots, size_t layer) {
    if (slots.contains(Slot::attn_prefix)) {
        for (const Slot slot : {Slot::attn_prefix_k, Slot::attn_prefix_v}) {
            if (slots.contains(slot)) SlotCheck(model, layer, slot).second_prefix();
        }
        return;
    }
    for (const Slot slot : {Slot::attn_prefix_k, Slot::attn_prefix_v}) {
        if (!slots.contains(slot)) SlotCheck(model, layer, slot).missing();
    }
}

void validate_slots(const Model& model, const Slots& slots, const std::vector<SlotDescription>& descriptions,
                    size_t layer) {
    const ModelConfig& config = model.config;
    const bool attends = layer == kWholeModel || config.n_head_kv_of(layer) > 0;
    const bool feeds = layer == kWholeModel || config.n_ff_of(layer) > 0;
    for (const auto& description : descriptions) {
        const Slot slot = description.slot;
        if (!attends && belongs_to_attention(slot)) continue;
        if (!feeds && belongs_to_ffn(slot)) continue;
        if (layer != kWholeModel && !is_of_layer(slot, config.n_expert_of(layer) > 0)) continue;
        if (layer != kWholeModel && model.topology.is_replaced(layer, slot)) continue;
        if (description.required && !slots.contains(slot)) SlotCheck(model, layer, slot).missing();
    }
    // Families in which it is optional have it where attention and FFN follow each other.
    if (feeds && layer != kWholeModel && !config.parallel_residual && slots.contains(Slot::attn_norm) &&
        !slots.contains(Slot::ffn_norm) && !slots.contains(Slot::ffn_output_norm))
        SlotCheck(model, layer, Slot::ffn_norm).missing();
    for (const auto& [slot, expression] : slots) {
        const SlotCheck check(model, layer, slot);
        const bool known = std::any_of(descriptions.begin(), descriptions.end(),
                                       [&, s = slot](const SlotDescription& d) { return d.slot == s; });
        const bool fits = known || may_be_added(model, slot);
        if (!fits || (layer == kWholeModel) != (properties(slot).scope == SlotScope::model)) check.unknown();
        if (layer != kWholeModel && model.topology.is_replaced(layer, slot)) check.replaced();
        if (is_unused_compensation(model, layer, slot)) check.no_use();
        if ((!attends && is_weight_of(slot, true)) || (!feeds && is_weight_of(slot, false)) ||
            (layer != kWholeModel && !is_of_layer(slot, config.n_expert_of(layer) > 0)))
            check.no_such_module();
        if (properties(slot).module == SlotModule::exit && layer != kWholeModel)
            check.exit(layer, expression);
        std::visit(check, expression);
    }
    if (config.n_prefix > 0 && layer != kWholeModel && attends) check_prefix(model, slots, layer);
}

// A layer that lacks some of the heads says which numbers, and so which slopes, the others have.
void validate_alibi_heads(const ModelConfig& c, size_t layer) {
    const auto& heads = c.alibi_heads_of(layer);
    const int64_t count = c.n_head_kv_of(layer);
    const bool listed = c.max_alibi_bias > 0 && count != c.n_head_kv && count != 0;
    if (heads.size() != (listed ? static_cast<size_t>(count) : 0))
        fail(ErrorCode::input, "topology", "layer {}: ALiBi's slopes of {} heads are given, expected {}",
             layer, heads.size(), listed ? count : 0);
    if (!std::is_sorted(heads.begin(), heads.end(), std::less_equal<>()) ||
        (!heads.empty() && (heads.front() < 0 || heads.back() >= c.n_head_kv)))
        fail(ErrorCode::input, "topology",
             "layer {}: the numbers of the heads that have ALiBi's slopes must ascend from 0 to {}", layer,
             c.n_head_kv - 1);
    if (listed && !c.causal)
        fail(ErrorCode::unsupported, "topology",
             "layer {}: heads of an encoder with ALiBi cannot be left out", layer);
}

void validate_streams(const ModelConfig& c, size_t layers, int64_t loops) {
    if (c.n_stream > 1 && loops > 1)
        fail(ErrorCode::unsupported, "topology", "{} loops of a model with {} residual streams", loops,
             c.n_stream);
    if (c.n_input_layer > 0 && static_cast<size_t>(c.n_input_layer) != layers)
        fail(ErrorCode::unsupported, "topology", "{} layers, and inputs for {}", layers, c.n_input_layer);
    for (size_t l = 0; l < layers; ++l) {
        // The cut depends on all channels.
        if (c.cuts_ffn(l) && c.n_ff_of(l) != 0 && c.n_ff_of(l) != c.n_ff)
            fail(ErrorCode::unsupported, "topology",
                 "layer {}: its FFN cuts off gates by their deviation over all {} channels, so none can be "
                 "left "
                 "out: got {}",
                 l, c.n_ff, c.n_ff_of(l));
    }
}

}  // namespace

void validate(const Model& model) {
    const ModelConfig& c = model.config;
    const size_t layers = model.topology.layers.size();
    for (const size_t given : {c.heads_kv.size(), c.ffs.size(), c.alibi_heads.size(), c.experts.size()}) {
        if (given != 0 && given != layers)
            fail(ErrorCode::input, "topology", "sizes of {} layers are given, the model has {}", given,
                 layers);
    }
    const int64_t loops = model.topology.loops;
    if (loops < 1 || layers % static_cast<size_t>(loops) != 0)
        fail(ErrorCode::input, "topology", "{} loops do not divide the {} layers", loops, layers);
    const bool windowed = std::any_of(c.windows.begin(), c.windows.end(), [](int64_t w) { return w > 0; });
    if (c.n_prefix > 0 && (windowed || c.max_alibi_bias > 0 || !c.causal || c.norm_values))
        fail(ErrorCode::unsupported, "topology",
             "prefix keys and values are for decoders without windows, ALiBi and norms of values");
    validate_streams(c, layers, loops);
    for (const auto& [layer, source] : model.topology.sources) validate_source(model, layer, source);
    for (size_t l = 0; l < layers; ++l) {
        const int64_t groups = c.n_head_kv_of(l), ff = c.n_ff_of(l);
        if (groups < 0 || groups > c.n_head_kv || ff < 0 || ff > c.n_ff)
            fail(ErrorCode::input, "topology",
                 "layer {}: {} key/value heads and {} FFN channels, the model has {} and {}", l, groups, ff,
                 c.n_head_kv, c.n_ff);
        const int64_t experts = c.n_expert_of(l);
        if (experts < 0 || experts > c.n_expert || (experts > 0 && experts < c.n_expert_used))
            fail(ErrorCode::input, "topology",
                 "layer {}: {} experts, of which a token uses {}; the model has {}", l, experts,
                 c.n_expert_used, c.n_expert);
        validate_alibi_heads(c, l);
        validate_slots(model, model.topology.layers[l], model.family->layer_slots, l);
    }
    validate_slots(model, model.topology.globals, model.family->model_slots, kWholeModel);
}

}  // namespace refold
