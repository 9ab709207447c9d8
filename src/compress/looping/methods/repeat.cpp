// Layers run again without copied weights: passthrough merges ("frankenmerges") that take no more memory for
// weights.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold::repeat_method {
namespace {

using Sequence = std::vector<size_t>;  // by new layer: the layer of the given model

Sequence parse_sequence(const std::string& text, size_t n_layer) {
    if (text.empty())
        fail(ErrorCode::usage, "repeat",
             "layers is needed: which ones run, in order, such as layers=0-15,8-23");
    Sequence sequence;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        const auto span =
            parse_layers(text.substr(begin, end == std::string::npos ? end : end - begin), n_layer);
        sequence.insert(sequence.end(), span.begin(), span.end());
    }
    constexpr size_t kLargest = 4096;  // a file may have no more
    if (sequence.size() > kLargest)
        fail(ErrorCode::usage, "repeat", "layers={}: {} layers, at most {} are possible", text,
             sequence.size(), kLargest);
    return sequence;
}

// "0-15, 8-23"
std::string sequence_text(const Sequence& sequence) {
    std::string text;
    for (size_t i = 0, end = 0; i < sequence.size(); i = end) {
        for (end = i + 1; end < sequence.size() && sequence[end] == sequence[end - 1] + 1;) ++end;
        text += (text.empty() ? "" : ", ") + layers_text({sequence.begin() + static_cast<ptrdiff_t>(i),
                                                          sequence.begin() + static_cast<ptrdiff_t>(end)});
    }
    return text;
}

void check(const Model& model, const Sequence& sequence) {
    if (model.topology.loops > 1)
        fail(ErrorCode::unsupported, "repeat",
             "the model runs one block of layers in {} loops, which other layers would break up: repeat "
             "layers "
             "before the step that loops it",
             model.topology.loops);
    if (model.config.n_input_layer > 0)
        fail(ErrorCode::unsupported, "repeat",
             "each of the {} layers has inputs of its own, which no other layer can use",
             model.config.n_input_layer);
    for (size_t i = 0; i < sequence.size() && model.config.scale_by_layer; ++i) {
        if (sequence[i] != i)
            fail(ErrorCode::unsupported, "repeat",
                 "attention scores of this model are divided by the number of the layer, and layer {} would "
                 "become "
                 "layer {}",
                 sequence[i], i);
    }
}

// A repeated layer takes its attention from the nearest earlier repetition of its source.
void set_sources(Topology& topology, const Topology& given, const Sequence& sequence) {
    topology.sources.clear();
    for (size_t i = 0; i < sequence.size(); ++i) {
        AttentionSource source = given.source(sequence[i]);
        if (source.own()) continue;
        std::optional<size_t>& from = source.kv ? source.kv : source.probabilities;
        size_t at = i;
        while (at > 0 && sequence[at - 1] != *from) --at;
        if (at == 0)
            fail(ErrorCode::unsupported, "repeat",
                 "layer {} takes its attention from layer {}, which does not come before it: name both",
                 sequence[i], *from);
        from = at - 1;
        topology.sources[i] = source;
    }
}

// Sizes by layer in the new order; none where all layers have the usual size.
std::vector<int64_t> reordered(const std::vector<int64_t>& sizes, const Sequence& sequence, int64_t usual) {
    std::vector<int64_t> out;
    if (sizes.empty()) return out;
    for (const size_t p : sequence) out.push_back(sizes[p]);
    if (std::all_of(out.begin(), out.end(), [&](int64_t size) { return size == usual; })) out.clear();
    return out;
}

// The number of layers in the metadata, from which families derive windows and scales when a file is read.
void set_depth(Model& out, const Model& model, const Sequence& sequence) {
    const std::string family = model.family->name, pattern = family + ".attention.sliding_window_pattern";
    const ModelConfig& given = model.config;
    out.metadata.set(family + ".block_count", GgufValue::u32(static_cast<uint32_t>(sequence.size())));
    // A list by layer is that of the given layers.
    if (const GgufValue* value = out.metadata.find(pattern);
        value != nullptr && value->type == GgufType::Array)
        out.metadata.erase(pattern);
    out.metadata.erase(family + "." + kRotatedKey);
    out.metadata.erase(family + "." + kExpertLayersKey);  // refold.sizes says it
    ModelConfig read = model.family->read_config(out.metadata);
    if (read.attention_scale != given.attention_scale)
        out.metadata.set(family + ".attention.scale", GgufValue::f32(given.attention_scale));
    if (read.max_alibi_bias != given.max_alibi_bias)
        out.metadata.set(family + ".attention.max_alibi_bias", GgufValue::f32(given.max_alibi_bias));
    std::vector<bool> rotated, usual;
    for (size_t i = 0; i < sequence.size(); ++i) {
        rotated.push_back(given.rotates(sequence[i]));
        usual.push_back(read.rotates(i));
    }
    if (rotated != usual) FamilyWriter(out.metadata, family.c_str()).flags(kRotatedKey, rotated);
    read = model.family->read_config(out.metadata);
    for (size_t i = 0; i < sequence.size(); ++i) {
        const auto text = [](int64_t window) {
            return window > 0 ? fmt::format("a window of {} tokens", window) : std::string("no window");
        };
        const int64_t own = given.window(sequence[i]), here = read.window(i);
        if (own != here)
            fail(ErrorCode::unsupported, "repeat",
                 "layer {} has {}, but would become layer {}, which has {} in family '{}': repeat spans that "
                 "keep the "
                 "order of windows",
                 sequence[i], text(own), i, text(here), family);
        if (rotated[i] != read.rotates(i))
            fail(ErrorCode::unsupported, "repeat",
                 "layer {} would become layer {}, and family '{}' rotates queries and keys in one of them "
                 "only",
                 sequence[i], i, family);
    }
    out.config.windows = read.windows;
    out.config.rotated = read.rotated;
}

Model apply(const Model& model, Step& step) {
    const size_t n_layer = model.topology.layers.size();
    const Sequence sequence = parse_sequence(step.options.text("layers"), n_layer);
    check(model, sequence);
    std::vector<size_t> runs(n_layer), left_out, repeated;
    for (const size_t p : sequence) ++runs[p];
    const bool same = std::is_sorted(sequence.begin(), sequence.end()) && sequence.size() == n_layer &&
                      std::find(runs.begin(), runs.end(), 0) == runs.end();
    for (size_t p = 0; p < n_layer; ++p) {
        if (runs[p] == 0) left_out.push_back(p);
        if (runs[p] > 1) repeated.push_back(p);
    }
    Model out = model;
    out.topology.layers.clear();
    for (const size_t p : sequence) out.topology.layers.push_back(model.topology.layers[p]);
    if (!same) {
        set_sources(out.topology, model.topology, sequence);
        set_depth(out, model, sequence);
        out.config.heads_kv = reordered(model.config.heads_kv, sequence, model.config.n_head_kv);
        out.config.ffs = reordered(model.config.ffs, sequence, model.config.n_ff);
        out.config.experts = reordered(model.config.experts, sequence, model.config.n_expert);
        out.config.alibi_heads.clear();
        if (!model.config.alibi_heads.empty()) {
            for (const size_t p : sequence) out.config.alibi_heads.push_back(model.config.alibi_heads[p]);
        }
        out.drop_unreferenced();
    }
    auto& lines = step.report.lines;
    lines.push_back(fmt::format("{} layers of {} stored ones: {}", sequence.size(), n_layer - left_out.size(),
                                sequence_text(sequence)));
    if (same) lines.emplace_back("every layer runs once, in order: the model is unchanged");
    if (!repeated.empty())
        lines.push_back(
            fmt::format("more than once, with the same stored weights: {}", layers_text(repeated)));
    if (!left_out.empty()) lines.push_back(fmt::format("left out: {}", layers_text(left_out)));
    step.report.details =
        nlohmann::json{{"layers", sequence}, {"repeated", repeated}, {"left_out", left_out}}.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
The layers run in the order of `layers`, in which a layer may appear several times: `layers=0-15,8-23` runs layers 0 to 15 and
then 8 to 23 of a model with 24 layers. This is the passthrough merge of mergekit ("frankenmerge") of a model with itself, but
without copies: all repetitions of a layer use the same stored weights, so that the file and the memory for weights stay as
they are. Each repetition has its own KV cache and costs as much time as any layer. mergekit's YAML of such a merge is read as a recipe:
`refold compress --recipe merge.yaml`.

Nothing is trained. Repeating single layers or spans in the middle of a large model can help it or not; measure with
`refold eval`. `lora` after this step gives each repetition weights of its own to train. Layers that `layers` does not name are
left out.

A layer that takes its attention from another one (`uniattn`, `cla`) takes it from the nearest earlier repetition of that
layer. Sliding windows belong to places in the stack: in Gemma 2 and 3, repeat spans that keep the order of layers with and
without a window (a multiple of 2 or 6 layers). Looped models are refused: repeat layers first.

`refold inspect` shows which layers share weights. `refold export` to GGUF or Hugging Face writes every repetition out.
)";

}  // namespace

extern const Method method;
const Method method = {
    "repeat",
    "run layers again without copies of their weights",
    "mergekit: a toolkit for merging large language models (passthrough merges)",
    kDocumentation + 1,
    {{.name = "layers",
      .fallback = "",
      .help = "layers in the order in which they run, from 0: 0-15,8-23; required"}},
    apply,
};

}  // namespace refold::repeat_method
