// Neighboring key/value heads become one, their mean: the baseline of head sharing that shrinks the KV
// cache. Ainslie et al., "GQA", section 2.1; "Head-wise Shareable Attention for Large Language Models",
// appendix G.1.
#include <nlohmann/json.hpp>
#include <set>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold::gqa_method {
namespace {

// Each `group` neighboring heads of `head` elements become their mean.
std::vector<float> mean_heads(const std::vector<float>& values, size_t head, size_t group) {
    std::vector<float> out;
    out.reserve(values.size() / group);
    for (size_t first = 0; first < values.size(); first += head * group) {
        for (size_t i = 0; i < head; ++i) {
            double sum = 0;
            for (size_t g = 0; g < group; ++g) sum += values[first + g * head + i];
            out.push_back(static_cast<float>(sum / static_cast<double>(group)));
        }
    }
    return out;
}

Tensor mean_tensor(const Model& model, const Tensor& tensor, int64_t group, DType type) {
    Tensor out{type, tensor.shape, {}, {}};
    out.shape.back() /= group;
    // Elements of a head: of its rows, or of its part of a vector.
    const int64_t head = model.config.head_dim * (tensor.shape.size() > 1 ? tensor.row_elements() : 1);
    out.produce = [=, row = out.row_elements(), file = model.source] {
        const TensorBytes bytes(tensor);
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        dequantize(tensor.type, bytes.bytes(), values);
        return quantize(type, mean_heads(values, static_cast<size_t>(head), static_cast<size_t>(group)), row);
    };
    return out;
}

void check(const Model& model, int64_t group) {
    const ModelConfig& c = model.config;
    if (c.n_head_kv % group != 0)
        fail(ErrorCode::usage, "gqa", "group={} does not divide the {} key/value heads{}", group, c.n_head_kv,
             c.n_head_kv < c.n_head ? fmt::format(" (each serves {} query heads already)", c.q_per_kv())
                                    : std::string());
    if (!c.heads_kv.empty())
        fail(ErrorCode::unsupported, "gqa",
             "layers have different numbers of heads (an earlier step left some out): the mean of neighbors "
             "needs all of them - do this step first");
    if (c.n_prefix > 0)
        fail(ErrorCode::unsupported, "gqa",
             "the model has prefix keys and values, trained for its heads as they are - do this step first");
}

// The tensors of keys and values. Shared heads and factors are refused: their mean is neither.
std::set<std::string> kv_tensors(const Model& model) {
    std::set<std::string> names;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (!properties(slot).units || unit_extent(slot) != Extent::kv) continue;
            const auto* dense = std::get_if<Dense>(&expression);
            if (dense == nullptr)
                fail(ErrorCode::unsupported, "gqa",
                     "layer {}: {} consists of shared heads or factors, which have no mean as such - do this "
                     "step first",
                     p, slot_name(slot));
            names.insert(dense->tensor);
        }
    }
    return names;
}

Model apply(const Model& model, Step& step) {
    const int64_t group = step.options.integer("group");
    check(model, group);
    const std::set<std::string> names = kv_tensors(model);
    Model out = model;
    const int64_t before = model.config.n_head_kv, after = before / group;
    if (group > 1) {
        for (const auto& name : names) {
            const Tensor& tensor = model.tensor(name);
            const DType type = tensor.shape.size() > 1
                                   ? computed_type(step.options.text("type"), model, {name})
                                   : DType::F32;
            out.tensors[name] = mean_tensor(model, tensor, group, type);
        }
        out.config.n_head_kv = after;
        out.metadata.set(std::string(model.family->name) + ".attention.head_count_kv",
                         GgufValue::u32(static_cast<uint32_t>(after)));
    }
    step.report.lines.push_back(fmt::format("{} key/value heads -> {} per layer, each for {} query heads",
                                            before, after, out.config.q_per_kv()));
    step.report.details = nlohmann::json{{"heads_kv_before", before}, {"heads_kv", after}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
Each `group` neighboring key heads of a layer become one, their mean, and so do the value heads. Query heads and the output
projection stay. This is the standard conversion of a multi-head checkpoint to grouped-query attention (mean pooling), before
any uptraining; the paper of head sharing compares itself with it at a group size of 2 (Table 14).

All layers are converted, so the result is a plain model with fewer key/value heads: nothing is shared, and the KV cache is
smaller by the group size. A model that already has grouped-query attention is grouped further; `group` must divide its
number of key/value heads.

Means are computed in float64 and stored in `type`; means of quantized weights become 16-bit floats, so quantize again at the
end. Biases are averaged like rows. Where all heads of a group are equal, only the size changes.

Put this step before steps that share or leave out heads or make factors of them.
)";

}  // namespace

extern const Method method;
const Method method = {
    "gqa",
    "baseline: mean of neighboring key/value heads (multi-head to grouped-query attention)",
    "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, section 2.1; "
    "Head-wise Shareable Attention for Large Language Models, appendix G.1, Table 14",
    kDocumentation + 1,
    {
        {"group", OptionSpec::Kind::integer, "2", "key/value heads that become one", 1},
        type_option(),
    },
    apply,
};

}  // namespace refold::gqa_method
