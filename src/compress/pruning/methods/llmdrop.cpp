// LLMDrop: modules whose output resembles their input most are left out.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/residual_stream.h"
#include "compress/method/lazy.h"
#include "compress/method/method.h"
#include "compress/method/selection.h"
#include "compress/method/work.h"
#include "compress/rewrite/modules.h"
#include "core/error.h"
#include "core/group.h"
#include "core/progress.h"

namespace refold::llmdrop_method {
namespace {

using nlohmann::json;
using Floats = std::span<const float>;

enum class Module { attention, ffn, block };

Module module_of(const std::string& modules) {
    return modules == "attention" ? Module::attention : modules == "ffn" ? Module::ffn : Module::block;
}

bool has(const Model& model, size_t layer, Module module) {
    const bool attention = model.topology.has(layer, Slot::attn_o), ffn = has_ffn(model.topology, layer);
    return module == Module::attention ? attention : module == Module::ffn ? ffn : attention && ffn;
}

// Sum over tokens of cos(x, y); with `added`, of cos(x, x + y).
double sum_of_cosines(Floats x, Floats y, bool added, size_t width) {
    double sum = 0;
    for (size_t at = 0; at < x.size(); at += width) {
        double xx = 0, yy = 0, xy = 0;
        for (size_t i = at; i < at + width; ++i) {
            const double a = static_cast<double>(x[i]),
                         b = added ? a + static_cast<double>(y[i]) : static_cast<double>(y[i]);
            xx += a * a;
            yy += b * b;
            xy += a * b;
        }
        if (xx > 0 && yy > 0) sum += xy / std::sqrt(xx * yy);
    }
    return sum;
}

constexpr Computation kSimilarities{"llmdrop", 1};

// By layer: mean over all tokens of the cosine between the residual stream before and after the module; NaN
// for layers without the module.
std::vector<float> similarities(const Model& model, const Calibration& calibration, Module module,
                                int threads) {
    auto all = calibration.fit;
    all.insert(all.end(), calibration.held_out.begin(), calibration.held_out.end());
    const auto sequences = group().own(all);
    const auto width = static_cast<size_t>(model.config.n_embd);
    const size_t layers = model.topology.layers.size();
    const Tap before =
        module == Module::ffn && !model.config.parallel_residual ? Tap::residual : Tap::layer_input;
    const Tap output = module == Module::ffn ? Tap::ffn_output : Tap::attn_output;
    ResidualStream stream(model, sequences, calibration.options.length, threads);
    std::vector<float> out(layers, NAN);
    Progress progress("similarity", layers, "layers");
    for (size_t p = 0; p < layers; ++p) {
        if (has(model, p, module)) {
            ResidualStream::Pass pass(stream, model, p, {before, output});
            double sum = 0, tokens = 0;
            for (size_t s = 0; s < sequences.size(); ++s) {
                const Floats after = pass.run(s), x = pass.tapped(before);
                sum += module == Module::block ? sum_of_cosines(x, after, false, width)
                                               : sum_of_cosines(x, pass.tapped(output), true, width);
                tokens += static_cast<double>(sequences[s].size());
            }
            double sums[] = {sum, tokens};
            group().sum(sums);
            out[p] = static_cast<float>(sums[0] / sums[1]);
        }
        stream.advance(model, p);
        progress.advance(1);
    }
    progress.finish();
    return out;
}

// A layer whose attention other layers use cannot lose it.
bool lends(const Model& model, size_t layer) {
    return model.topology.lends_probabilities(layer) || model.topology.lends_kv(layer);
}

std::vector<size_t> candidates(const Model& model, const Step& step, Module module) {
    if (!model.config.causal || model.topology.layers.size() != step.original.topology.layers.size())
        fail(ErrorCode::unsupported, "llmdrop", "{}",
             model.config.causal
                 ? std::string("the number of layers is not the original's, which is what is measured")
                 : fmt::format("'{}' is an encoder: similarities are measured in decoders only",
                               model.config.family));
    std::vector<size_t> layers;
    for (const size_t p : parse_layers_or_half(step.options.text("layers"), model.topology.layers.size())) {
        if (has(model, p, module) && has(step.original, p, module) &&
            (module == Module::ffn || !lends(model, p)))
            layers.push_back(p);
    }
    const auto count = static_cast<size_t>(step.options.integer("count"));
    if (count > layers.size())
        fail(ErrorCode::usage, "llmdrop", "count={}: layers={} has {} with {} that can be left out", count,
             step.options.text("layers"), layers.size(), step.options.text("modules"));
    return layers;
}

// The `count` of `layers` (ascending) with the highest similarity, highest first; of equal ones the first.
std::vector<size_t> highest(std::vector<size_t> layers, const std::vector<float>& similarity, size_t count) {
    std::stable_sort(layers.begin(), layers.end(),
                     [&](size_t a, size_t b) { return similarity[a] > similarity[b]; });
    layers.resize(count);
    return layers;
}

Model apply(const Model& model, Step& step) {
    const Options& options = step.options;
    const std::string& modules = options.text("modules");
    const Module module = module_of(modules);
    const auto layers = candidates(model, step, module);
    std::vector<float> similarity(model.topology.layers.size());
    auto& lines = step.report.lines;
    if (step.dry_run()) {
        for (size_t p = 0; p < similarity.size(); ++p) similarity[p] = static_cast<float>(p);
        lines.emplace_back(
            "dry run: which layers is decided by calibration text; here they are the latest ones");
    } else {
        const ResultKey key{kSimilarities, {{"step", step.identity}, {"modules", modules}}};
        const auto found = step.work->results_of_all(key, [&] {
            auto values = similarities(step.original, *step.calibration, module, step.threads);
            return Arrays{{"similarity", {{static_cast<int64_t>(values.size())}, std::move(values)}}};
        });
        similarity = lazy::floats(found.at("similarity"), nullptr);
    }
    const auto chosen = highest(layers, similarity, static_cast<size_t>(options.integer("count")));
    Model out = model;
    for (const size_t p : chosen) {
        if (module != Module::ffn) remove_attention(out, p);
        if (module != Module::attention) remove_ffn(out, p);
    }
    out.drop_unreferenced();
    json details = {{"layers", chosen}, {"modules", modules}};
    std::vector<std::string> texts;
    for (const size_t p : chosen)
        texts.push_back(step.dry_run() ? fmt::format("{}", p) : fmt::format("{} ({:.4f})", p, similarity[p]));
    lines.push_back(fmt::format("left out: {} of layers {}",
                                modules == "block" ? "attention and FFN" : modules, fmt::join(texts, ", ")));
    lines.push_back("saves " + saving_text(model, out));
    if (!step.dry_run()) {
        for (const float s : similarity) details["similarity"].push_back(std::isnan(s) ? json() : json(s));
    }
    step.report.details = details.dump();
    return out;
}

constexpr const char* kDocumentation = R"(
The modules that change the residual stream least are left out, with their norms, biases and KV cache; the residual stream
bypasses them. For each layer, the cosine between the residual stream x before the module's norm and x + f(x) after the module
is measured in the original model, as the mean over all tokens of the calibration text. The `count` modules with the highest
cosines are left out. All are measured once: that leaving one out changes the others is ignored.

`modules`: the attention, the FFN, or whole layers (`block`: the cosine between a layer's input and output). `layers`: the
layers to choose from: `all`, `top half` (as UniAttn, section 4.1, in its comparison: LLMDrop-Full leaves out as many as
`uniattn` has reusing layers, LLMDrop-Half half as many), or 20-29,5. Layers without the module, and layers whose attention
others use, are no candidates. Where attention and FFN run in parallel (GPT-J, GPT-NeoX), both are compared with the layer's
input.

`drop` does the same without calibration, for named layers. `compensation` after this step gives layers without attention a
W_c; `refit` solves the output projections anew. Needs calibration text (`--calib FILE --calib-tokens N`).
)";

}  // namespace

extern const Method method;
const Method method = {
    "llmdrop",
    "leave out the modules that change the residual stream least",
    "What Matters in Transformers? Not All Attention is Needed, section 3; UniAttn, section 4.1, Table 8",
    kDocumentation + 1,
    {
        {"count", OptionSpec::Kind::integer, "4", "modules that are left out", 1},
        {.name = "modules",
         .kind = OptionSpec::Kind::choice,
         .fallback = "attention",
         .help = "what is left out; block: attention and FFN",
         .choices = {"attention", "ffn", "block"}},
        {.name = "layers", .fallback = "all", .help = "layers to choose from: 15-29, all or top half"},
    },
    apply,
    [](const Options&) { return true; },
};

}  // namespace refold::llmdrop_method
