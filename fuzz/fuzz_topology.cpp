// Fuzzes what files say of a model: for any text under "refold.topology", "refold.sizes" and "refold.folded",
// parsing and validate() give a model whose weights can all be computed, or throw refold::Error - no crash,
// no sanitizer report, no other exception.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "bundle.h"
#include "engine/expression_models.h"
#include "model/accounting.h"
#include "model/folded.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/sizes.h"
#include "model/validate.h"
#include "target.h"

namespace {

using refold::Model;

struct Texts {
    std::string topology, sizes, folded;
};

// With `fold`, folds the matrices whose uses allow it, and leaves them as files store them.
Texts texts_of(Model& model, bool fold) {
    constexpr refold::DType kType = refold::DType::Q4_K;
    for (const auto& [name, use] : refold::quantized_uses(model)) {
        if (fold && use.matrix && !use.embedding && fits(kType, use, refold::RowLayout::or_folded))
            model.tensors[name] = nearest_tensor(model, name, kType);
    }
    Texts out{refold::topology_to_json(model.topology, model.implied()), refold::sizes_to_json(model.config),
              refold::folded_to_json(model.tensors)};
    for (auto& [name, tensor] : model.tensors) tensor.shape = refold::folded_shape(tensor);
    return out;
}

void compute_all(const Model& model, const refold::Slots& slots, size_t layer) {
    for (const auto& [slot, expression] : slots) {
        const auto values = refold::materialize(model, expression, slot, layer);
        const refold::SlotShape shape = refold::slot_shape(slot, model.config, layer);
        if (static_cast<int64_t>(values.size()) != shape.in * shape.out) abort();
        for (const float value : values) refold::use(value != 0 ? 1 : 0);
    }
}

// Makes a model from the tensors of `source` and these texts. False if they are refused.
bool run_one(const Model& source, const Texts& texts) {
    Model model = source;
    model.config.heads_kv.clear();
    model.config.ffs.clear();
    model.config.n_prefix = 0;
    bool taken = true;
    const bool read = refold::reads([&] {
        if (!texts.folded.empty()) refold::unfold_shapes(texts.folded, model.tensors);
        const refold::Topology implied = source.implied();
        model.topology = refold::topology_from_json(texts.topology, implied);
        const size_t layers = model.topology.layers.size();
        taken = layers <= 64;  // more would be too slow, no matter what they are
        if (!taken) return;
        if (!texts.sizes.empty()) refold::sizes_from_json(texts.sizes, layers, model.config);
        refold::validate(model);
        for (size_t p = 0; p < layers; ++p) compute_all(model, model.topology.layers[p], p);
        compute_all(model, model.topology.globals, refold::kWholeModel);
        const refold::Accounting accounting = refold::account(model);
        if (accounting.model.bytes == 0) abort();
        const std::string again = refold::topology_to_json(model.topology, implied);
        if (refold::topology_from_json(again, implied) != model.topology) abort();
    });
    return read && taken;
}

// The models whose tensors inputs use, by number, and the texts of their files.
struct Source {
    Model model;
    Texts texts;
};

const std::vector<Source>& sources() {
    static const std::vector<Source> all = [] {
        constexpr refold::ExpressionShape kSmall{
            .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 40};
        std::vector<Source> out;
        size_t folded = 0;
        for (uint32_t seed = 1; seed <= 24; ++seed) {
            Model model = refold::random_expression_model(
                seed, {.sizes = true, .prefix = seed % 2 == 0, .sources = true}, kSmall);
            Texts texts = texts_of(model, seed % 4 == 0);
            folded += texts.folded.empty() ? 0 : 1;
            out.push_back({std::move(model), std::move(texts)});
        }
        if (folded == 0) abort();
        return out;
    }();
    return all;
}

constexpr std::string_view kWords[] = {
    "heads",       "low_rank",      "tucker", "plus",     "like",       "core",          "model",
    "head",        "roles",         "role",   "u",        "v",          "scale",         "row",
    "halves",      "loops",         "attn.q", "attn.k",   "attn.o",     "attn.norm",     "ffn.up",
    "ffn.down",    "output",        "prefix", "kv_heads", "transposed", "attn.prefix_k", "token_embd",
    "attention",   "probabilities", "kv",     "attn.v",   "attn.comp",  "attn.comp_ffn", "attn.comp_o",
    "attn.comp_v", "rows",          "parts",  "ids"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    Bundle files = unbundled(input);
    const size_t number = strtoull(files["model"].c_str(), nullptr, 10) % sources().size();
    return run_one(sources()[number].model, {files["topology"], files["sizes"], files["folded"]});
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < sources().size(); ++i) {
        const Texts& texts = sources()[i].texts;
        seeds.push_back(bundled({{"model", std::to_string(i)},
                                 {"topology", texts.topology},
                                 {"sizes", texts.sizes},
                                 {"folded", texts.folded}}));
    }
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
