// Does a model hang together? What a file claims is checked here, before anything is computed from it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/model.h"

namespace refold {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// One slot of one place.
class SlotCheck {
public:
    SlotCheck(const Model& model, size_t position, Slot slot)
        : model_(model),
          slot_(slot),
          shape_(slot_shape(slot, model.config, position)),
          place_(position == kModelPosition ? slot_name(slot)
                                            : fmt::format("position {} {}", position, slot_name(slot))) {}

    void missing() const { fail(ErrorCode::input, "topology", "{} is missing", place_); }
    void unknown() const {
        fail(ErrorCode::input, "topology", "{}: not a slot of this place in family '{}'", place_,
             model_.family->name);
    }
    void no_such_module() const {
        fail(ErrorCode::input, "topology", "{}: the position's size says that it has no such module", place_);
    }

    void replaced() const {
        fail(ErrorCode::input, "topology", "{}: the position takes its attention from another one", place_);
    }

    void no_use() const {
        fail(ErrorCode::input, "topology", "{}: the position has no use for it: {}", place_,
             slot_ == Slot::attn_comp_v ? "its attention does not weight values with another one's "
                                          "probabilities"
                                        : "it has no attention");
    }

    // Exits are at the ends of loops; the last one's is the end of the model.
    void exit_map(size_t position, const Expression& expression) const {
        const Topology& topology = model_.topology;
        const size_t length = topology.positions.size() / static_cast<size_t>(topology.loops);
        if ((position + 1) % length != 0 || position + 1 == topology.positions.size())
            fail(ErrorCode::input, "topology",
                 "{}: tokens do not exit here, but behind a loop before the last", place_);
        const auto* factors = std::get_if<LowRank>(&expression);
        if (factors == nullptr || factors->transposed)
            fail(ErrorCode::input, "topology", "{}: an exit map is a product of two factors", place_);
    }

    void operator()(const Dense& dense) const {
        const Tensor& tensor = find(dense.tensor);
        if (tensor.row_elements() != shape_.in || tensor.rows() != shape_.out) {
            fail(ErrorCode::input, "topology", "{}: tensor '{}' has shape {}, expected [{}, {}]", place_,
                 dense.tensor, shape_text(tensor.shape), shape_.in, shape_.out);
        }
        if (is_vector(slot_) || is_prefix(slot_)) need_f32(dense.tensor);
    }

    void operator()(const Heads& heads) const {
        if (!consists_of_heads(slot_)) {
            fail(ErrorCode::input, "topology", "{}: only attn.q, attn.k, attn.v and attn.o consist of heads",
                 place_);
        }
        const int64_t head_dim = model_.config.head_dim;
        const bool columns = heads_are_columns(slot_);
        int64_t total = 0;
        for (const auto& run : heads.runs) {
            const Tensor& tensor = find(run.tensor);
            const int64_t along = columns ? tensor.row_elements() : tensor.rows();
            const int64_t across = columns ? tensor.rows() : tensor.row_elements();
            const int64_t expected = columns ? shape_.out : shape_.in;
            if (across != expected || along % head_dim != 0) {
                fail(ErrorCode::input, "topology",
                     "{}: tensor '{}' of shape {} does not consist of heads of {} x {}", place_, run.tensor,
                     shape_text(tensor.shape), head_dim, expected);
            }
            const int64_t stored = along / head_dim;
            if (run.count <= 0 || run.first < 0 || run.first >= stored || run.count > stored - run.first) {
                fail(ErrorCode::input, "topology", "{}: heads {}..{} of tensor '{}', which has {}", place_,
                     run.first, run.first + run.count - 1, run.tensor, stored);
            }
            const int64_t block = block_elements(tensor.type);
            if (columns && (run.first * head_dim % block != 0 || run.count * head_dim % block != 0)) {
                fail(ErrorCode::input, "topology",
                     "{}: columns of heads {}..{} of '{}' are not whole {} blocks of {}", place_, run.first,
                     run.first + run.count - 1, run.tensor, name(tensor.type), block);
            }
            total += run.count;
        }
        if (const int64_t needed = (columns ? shape_.in : shape_.out) / head_dim; total != needed)
            fail(ErrorCode::input, "topology", "{}: {} heads given, {} needed", place_, total, needed);
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
            fail(ErrorCode::input, "topology", "{}: core '{}' has shape {}, expected 4 dimensions", place_,
                 e.core, shape_text(core.shape));
        const int64_t heads = core.shape.size() == 4 ? core.shape[3] : 1;
        // A slot without heads is one head as wide as itself.
        const int64_t along = e.transposed ? shape_.in : shape_.out;
        const int64_t width = consists_of_heads(slot_) && heads > 1 ? model_.config.head_dim
                              : heads > 1                           ? 0
                                                                    : along;
        const int64_t slot_heads = width > 0 ? along / width : 0;
        if (slot_heads == 0 || heads % slot_heads != 0 || (e.transposed && heads != slot_heads)) {
            fail(ErrorCode::input, "topology", "{}: core '{}' has {} heads, the slot {}", place_, e.core,
                 heads, slot_heads);
        }
        need_shape(e.model, {e.transposed ? shape_.out : shape_.in, core.shape[0]});
        need_shape(e.head, {width, core.shape[1]});
        need_f32(e.head);
        need_f32(e.roles);
        const Tensor& roles = find(e.roles);
        need_shape(e.roles, {roles.row_elements(), core.shape[2]});
        if (e.role < 0 || e.role >= roles.row_elements())
            fail(ErrorCode::input, "topology", "{}: role {} of '{}', which has {}", place_, e.role, e.roles,
                 roles.row_elements());
        if (e.halves && width % 2 != 0)
            fail(ErrorCode::input, "topology", "{}: heads of {} rows have no halves", place_, width);
    }

    void operator()(const Plus& e) const {
        std::visit([&](const auto& base) { (*this)(base); }, e.base);
        (*this)(e.term);
    }

private:
    const Tensor& find(const std::string& name) const {
        const auto found = model_.tensors.find(name);
        if (found == model_.tensors.end())
            fail(ErrorCode::input, "topology", "{}: refers to tensor '{}', which is not in the file", place_,
                 name);
        return found->second;
    }
    void need_matrix() const {
        if (!is_matrix(slot_))
            fail(ErrorCode::input, "topology", "{}: only matrices are made of factors", place_);
    }
    // Row elements and rows.
    void need_shape(const std::string& tensor_name, std::array<int64_t, 2> expected) const {
        const Tensor& tensor = find(tensor_name);
        if (tensor.row_elements() != expected[0] || tensor.rows() != expected[1])
            fail(ErrorCode::input, "topology", "{}: tensor '{}' has shape {}, expected [{}, {}]", place_,
                 tensor_name, shape_text(tensor.shape), expected[0], expected[1]);
    }
    void need_row(const std::string& tensor_name, int64_t elements, int64_t row) const {
        const Tensor& tensor = find(tensor_name);
        if (tensor.row_elements() != elements || row < 0 || row >= tensor.rows())
            fail(ErrorCode::input, "topology", "{}: row {} of {} elements of tensor '{}' of shape {}", place_,
                 row, elements, tensor_name, shape_text(tensor.shape));
    }
    void need_f32(const std::string& tensor_name) const {
        if (const DType type = find(tensor_name).type; type != DType::F32)
            fail(ErrorCode::unsupported, "topology", "{}: tensor '{}' has type {}, expected F32", place_,
                 tensor_name, name(type));
    }

    const Model& model_;
    Slot slot_;
    SlotShape shape_;
    std::string place_;
};

// Slots that methods add to what the family describes.
bool is_added(const Model& model, Slot slot) {
    return is_compensation(slot) || slot == Slot::exit_map || slot == Slot::attn_o_bias ||
           slot == Slot::ffn_down_bias || (is_prefix(slot) && model.config.n_prefix > 0);
}

void validate_source(const Model& model, size_t p, const AttentionSource& source) {
    const ModelConfig& c = model.config;
    const auto refuse = [&](const std::string& why) {
        fail(ErrorCode::input, "topology", "position {} takes its attention from elsewhere: {}", p, why);
    };
    if (p >= model.topology.positions.size()) refuse("there is no such position");
    if (source.probabilities && source.kv) refuse("either probabilities or keys and values can be given");
    const size_t from = source.from(p);
    if (from >= p) refuse(fmt::format("position {} is not an earlier one", from));
    if (!model.topology.source(from).own()) refuse(fmt::format("position {} has none of its own", from));
    if (c.n_head_kv_of(p) == 0 || c.n_head_kv_of(p) != c.n_head_kv_of(from))
        refuse(fmt::format("it has {} key/value heads, position {} has {}", c.n_head_kv_of(p), from,
                           c.n_head_kv_of(from)));
    if (!c.causal || c.n_prefix > 0)
        fail(ErrorCode::unsupported, "topology",
             "position {}: attention from another position is for decoders without prefixes", p);
}

bool is_weight_of(Slot slot, bool attention) {
    const bool matrix = is_matrix(slot) || is_prefix(slot);
    return matrix && !is_compensation(slot) &&
           (attention ? belongs_to_attention(slot) : belongs_to_ffn(slot));
}

// W_c that would add to what the position does not compute.
bool is_unused_compensation(const Model& model, size_t position, Slot slot) {
    if (slot == Slot::attn_comp_v) return !model.topology.source(position).probabilities;
    return slot == Slot::attn_comp_o && model.config.n_head_kv_of(position) == 0;
}

void validate_slots(const Model& model, const Slots& slots, const std::vector<SlotDescription>& descriptions,
                    size_t position) {
    const ModelConfig& config = model.config;
    const bool attends = position == kModelPosition || config.n_head_kv_of(position) > 0;
    const bool feeds = position == kModelPosition || config.n_ff_of(position) > 0;
    for (const auto& description : descriptions) {
        const Slot slot = description.slot;
        if (!attends && belongs_to_attention(slot)) continue;
        if (!feeds && belongs_to_ffn(slot)) continue;
        if (position != kModelPosition && model.topology.is_replaced(position, slot)) continue;
        if (description.required && !slots.contains(slot)) SlotCheck(model, position, slot).missing();
    }
    for (const auto& [slot, expression] : slots) {
        const SlotCheck check(model, position, slot);
        const bool known = std::any_of(descriptions.begin(), descriptions.end(),
                                       [&, s = slot](const SlotDescription& d) { return d.slot == s; });
        const bool added = position != kModelPosition && is_added(model, slot);
        if (!known && !added) check.unknown();
        if (position != kModelPosition && model.topology.is_replaced(position, slot)) check.replaced();
        if (is_unused_compensation(model, position, slot)) check.no_use();
        if ((!attends && is_weight_of(slot, true)) || (!feeds && is_weight_of(slot, false)))
            check.no_such_module();
        if (slot == Slot::exit_map) check.exit_map(position, expression);
        std::visit(check, expression);
    }
    if (config.n_prefix > 0 && position != kModelPosition && attends) {
        for (const Slot slot : {Slot::attn_prefix_k, Slot::attn_prefix_v}) {
            if (!slots.contains(slot)) SlotCheck(model, position, slot).missing();
        }
    }
}

using nlohmann::json;

std::vector<int64_t> sizes_of(const json& root, const char* field, size_t positions, int64_t largest) {
    const auto found = root.find(field);
    if (found == root.end()) return {};
    if (!found->is_array() || found->size() != positions)
        fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must list {} positions, got {}", field,
             positions, found->dump());
    std::vector<int64_t> sizes;
    for (const json& value : *found) {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest))
            fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must be 0 to {}, got {}", field, largest,
                 value.dump());
        sizes.push_back(value);
    }
    return sizes;
}

}  // namespace

void validate(const Model& model) {
    const ModelConfig& c = model.config;
    const size_t positions = model.topology.positions.size();
    if ((!c.heads_kv.empty() && c.heads_kv.size() != positions) ||
        (!c.ffs.empty() && c.ffs.size() != positions))
        fail(ErrorCode::input, "topology", "sizes of {} and {} positions are given, the model has {}",
             c.heads_kv.size(), c.ffs.size(), positions);
    const int64_t loops = model.topology.loops;
    if (loops < 1 || positions % static_cast<size_t>(loops) != 0)
        fail(ErrorCode::input, "topology", "{} loops do not divide the {} positions", loops, positions);
    const bool windowed = std::any_of(c.windows.begin(), c.windows.end(), [](int64_t w) { return w > 0; });
    if (c.n_prefix > 0 && (windowed || c.max_alibi_bias > 0 || !c.causal))
        fail(ErrorCode::unsupported, "topology",
             "prefix keys and values are for decoders without windows and ALiBi");
    for (const auto& [position, source] : model.topology.sources) validate_source(model, position, source);
    for (size_t p = 0; p < positions; ++p) {
        const int64_t groups = c.n_head_kv_of(p), ff = c.n_ff_of(p);
        if (groups < 0 || groups > c.n_head_kv || ff < 0 || ff > c.n_ff)
            fail(ErrorCode::input, "topology",
                 "position {}: {} key/value heads and {} FFN channels, the model has {} and {}", p, groups,
                 ff, c.n_head_kv, c.n_ff);
        if (c.max_alibi_bias > 0 && c.n_head_kv_of(p) != c.n_head_kv && c.n_head_kv_of(p) != 0)
            fail(ErrorCode::unsupported, "topology",
                 "position {}: ALiBi's slopes belong to the heads' numbers, so single heads cannot be left "
                 "out",
                 p);
        validate_slots(model, model.topology.positions[p], model.family->position_slots, p);
    }
    validate_slots(model, model.topology.globals, model.family->model_slots, kModelPosition);
}

std::string sizes_to_json(const ModelConfig& config) {
    json out = json::object();
    if (!config.heads_kv.empty()) out["kv_heads"] = config.heads_kv;
    if (!config.ffs.empty()) out["ffn"] = config.ffs;
    if (config.n_prefix > 0) out["prefix"] = config.n_prefix;
    return out.empty() ? "" : out.dump();
}

void sizes_from_json(const std::string& text, size_t positions, ModelConfig& config) {
    constexpr uint64_t kMaxPrefix = 1 << 16;
    const json root = json::parse(text, nullptr, false);
    if (!root.is_object()) fail(ErrorCode::input, "model", "refold.sizes: not a JSON object");
    for (const auto& [key, value] : root.items()) {
        if (key != "kv_heads" && key != "ffn" && key != "prefix")
            fail(ErrorCode::input, "model", "refold.sizes: unknown field \"{}\"", key);
    }
    config.heads_kv = sizes_of(root, "kv_heads", positions, config.n_head_kv);
    config.ffs = sizes_of(root, "ffn", positions, config.n_ff);
    if (const auto prefix = root.find("prefix"); prefix != root.end()) {
        if (!prefix->is_number_unsigned() || prefix->get<uint64_t>() > kMaxPrefix)
            fail(ErrorCode::input, "model", "refold.sizes: \"prefix\" must be 0 to {}, got {}", kMaxPrefix,
                 prefix->dump());
        config.n_prefix = *prefix;
    }
}

}  // namespace refold
