#include "analyze/analysis.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/attention_errors.h"
#include "analyze/degree.h"
#include "analyze/layer_summary.h"
#include "analyze/weights.h"
#include "core/error.h"
#include "core/text.h"
#include "model/folded.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

struct PartInfo {
    AnalysisPart part;
    const char* name;
    bool text, original = false;
};
constexpr std::array kParts = {
    PartInfo{AnalysisPart::weights, "weights", false}, PartInfo{AnalysisPart::spectra, "spectra", false},
    PartInfo{AnalysisPart::softmax, "softmax", true},  PartInfo{AnalysisPart::heads, "heads", true},
    PartInfo{AnalysisPart::modules, "modules", true},  PartInfo{AnalysisPart::sharing, "sharing", true, true},
};

const PartInfo& info(AnalysisPart part) {
    return *std::find_if(kParts.begin(), kParts.end(), [&](const auto& entry) { return entry.part == part; });
}

// Further digits would be rounding errors of float32 activations.
Json number(double value) {
    if (!std::isfinite(value)) return nullptr;
    return std::round(value * 1e8) / 1e8;
}

Json numbers(std::span<const double> values) {
    Json out = Json::array();
    for (const double value : values) out.push_back(number(value));
    return out;
}

Json rows(const SquareMatrix& matrix) {
    Json out = Json::array();
    for (size_t i = 0; i < matrix.size(); ++i) out.push_back(numbers(matrix.row(i)));
    return out;
}

Json labels(const std::vector<Unit>& units) {
    Json out = Json::array();
    for (const Unit& unit : units) out.push_back(fmt::format("{}.{}", unit.layer, unit.index));
    return out;
}

Json best_matches(const SquareMatrix& cosines, const std::vector<Unit>& units) {
    std::vector<size_t> layers;
    for (const Unit& unit : units) layers.push_back(unit.layer);
    const auto best = best_of_earlier(cosines, layers);
    Json out = Json::array();
    for (size_t i = 0; i < units.size(); ++i) {
        Json former_layer, former_head, cosine;
        if (best[i]) {
            former_layer = units[best[i]->index].layer;
            former_head = units[best[i]->index].index;
            cosine = number(best[i]->cosine);
        }
        out.push_back({{"layer", units[i].layer},
                       {"head", units[i].index},
                       {"former_layer", former_layer},
                       {"former_head", former_head},
                       {"cosine", cosine}});
    }
    return out;
}

Json weights_part(const Model& model) {
    const HeadSimilarity heads = head_similarity(model);
    return {{"unit", model.config.q_per_kv() > 1 ? "kv_group" : "head"},
            {"compared", "attn.q and attn.k, concatenated"},
            {"heads", labels(heads.units)},
            {"head_cosine", rows(heads.cosines)},
            {"best_matches", best_matches(heads.cosines, heads.units)},
            {"attention_module_cosine", rows(module_cosines(model, kQkvo))},
            {"ffn_module_cosine", rows(module_cosines(model, kFfnMatrices))}};
}

Json spectra_part(const Model& model) {
    Json matrices = Json::array();
    for (const Spectrum& s : spectra(model)) {
        matrices.push_back({{"layers", s.layers},
                            {"slot", slot_name(s.slot)},
                            {"rows", s.shape.out},
                            {"columns", s.shape.in},
                            {"rank_for_50_percent", s.rank_50},
                            {"rank_for_90_percent", s.rank_90},
                            {"rank_for_99_percent", s.rank_99},
                            {"stable_rank", number(s.stable_rank)},
                            {"singular_values", numbers(s.values)}});
    }
    return {{"matrices", matrices}};
}

Json softmax_part(const MapSimilarity& maps) {
    const LayerSummary summary = summarize(maps.layers);
    return {{"compared", "probabilities of one sequence, all heads and tokens as one vector"},
            {"sequences", maps.sequences},
            {"average", number(summary.average)},
            {"maximum", number(summary.maximum)},
            {"minimum", number(summary.minimum)},
            {"standard_deviation_over_pairs", number(summary.deviation)},
            {"standard_deviation_over_texts", number(summarize(maps.layer_deviations).average)},
            {"top_half_average", number(summary.top_half)},
            {"bottom_half_average", number(summary.bottom_half)},
            {"top_minus_bottom", number(summary.difference())},
            {"layer_cosine", rows(maps.layers)},
            {"layer_cosine_deviation_over_texts", rows(maps.layer_deviations)},
            {"layer_cosine_of_mean_maps", rows(maps.layers_of_mean_maps)}};
}

Json spread(const std::vector<double>& values) {
    RunningMean mean;
    for (const double value : values) mean.add(value);
    return {{"mean", number(mean.mean())},
            {"standard_deviation", number(mean.deviation())},
            {"samples", numbers(values)}};
}

Json heads_part(const Model& model, const MapSimilarity& maps, const Degree& degree, double ratio) {
    const double chance = degree.candidates > 0
                              ? static_cast<double>(degree.k) / static_cast<double>(degree.candidates)
                              : kUndefined;
    return {{"heads", labels(maps.heads)},
            {"head_cosine", rows(maps.head_cosines)},
            {"best_matches", best_matches(maps.head_cosines, maps.heads)},
            {"degree",
             {{"unit", model.config.q_per_kv() > 1 ? "kv_group" : "head"},
              {"ratio", ratio},
              {"selected_pairs", degree.k},
              {"candidates", degree.candidates},
              {"of_pairs", spread(degree.pairs)},
              {"of_heads", spread(degree.heads)},
              {"of_heads_by_chance", number(chance)}}}};
}

Json modules_part(const std::vector<ModuleSimilarity>& modules) {
    Json layers = Json::array();
    for (size_t p = 0; p < modules.size(); ++p) {
        const ModuleSimilarity& own = modules[p];
        layers.push_back({{"layer", p},
                          {"attention", number(own.attention.mean())},
                          {"ffn", number(own.ffn.mean())},
                          {"whole_layer", number(own.layer.mean())},
                          {"attention_standard_deviation", number(own.attention.deviation())},
                          {"ffn_standard_deviation", number(own.ffn.deviation())},
                          {"whole_layer_standard_deviation", number(own.layer.deviation())}});
    }
    return {{"compared", "residual stream before and after, token by token"}, {"layers", layers}};
}

// The errors of a layer, or their means over layers.
void add_errors(Json& out, const ErrorSize& without, const std::optional<ErrorSize>& with) {
    out["error_without"] = number(without.of_means);
    out["error_with"] = with ? number(with->of_means) : Json();
    out["error_left"] = with ? number(with->of_means / without.of_means) : Json();
    out["token_error_without"] = number(without.of_tokens);
    out["token_error_with"] = with ? number(with->of_tokens) : Json();
    out["token_error_left"] = with ? number(with->of_tokens / without.of_tokens) : Json();
}

void add_depth(Json& out, const DepthFactor& depth) {
    out["depth_factor"] = number(depth.size);
    out["depth_effect"] = number(depth.effect);
}

Json sharing_part(const Model& model, const AttentionErrors& errors) {
    Json layers = Json::array();
    bool compensated = false;
    for (const AttentionError& own : errors.layers) {
        Json& layer = layers.emplace_back();
        layer = {{"layer", own.layer}, {"source", own.source ? Json(*own.source) : Json()}};
        add_errors(layer, own.without, own.with);
        add_depth(layer, own.depth);
        compensated = compensated || own.with;
    }
    Json out = {{"compared", "residual stream after the attention, with the original model's"},
                {"positions", errors.positions}};
    add_errors(out, errors.without(), compensated ? std::optional(errors.with()) : std::nullopt);
    out["expected_error_on_random_data"] =
        number(expected_error_on_random_data(errors.positions, model.config.n_embd));
    add_depth(out, errors.depth());
    out["layers"] = std::move(layers);
    return out;
}

void add_text_parts(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                    const AnalysisOptions& options, Analysis& out) {
    const auto wanted = [&](AnalysisPart part) { return options.parts.contains(part); };
    const bool heads = wanted(AnalysisPart::heads);
    const HeadCandidates candidates = heads ? head_candidates(model) : HeadCandidates{};
    std::vector<std::set<size_t>> samples;
    if (heads) samples = random_samples(sequences.size(), options.repeats, options.sample);
    AttentionMaps maps(model, candidates.units, samples);
    ModuleSimilarities modules(model);
    const bool any_maps = heads || wanted(AnalysisPart::softmax);
    if (any_maps || wanted(AnalysisPart::modules))
        run_text(model, sequences, options.pass, any_maps ? &maps : nullptr,
                 wanted(AnalysisPart::modules) ? &modules : nullptr);
    if (any_maps) {
        const MapSimilarity similarity = maps.similarity();
        if (wanted(AnalysisPart::softmax)) out[AnalysisPart::softmax] = softmax_part(similarity);
        if (heads) {
            const Degree found = degree(model, candidates, maps.sample_cosines(), options.ratio);
            out[AnalysisPart::heads] = heads_part(model, similarity, found, options.ratio);
        }
    }
    if (wanted(AnalysisPart::modules)) out[AnalysisPart::modules] = modules_part(modules.layers());
    if (wanted(AnalysisPart::sharing))
        out[AnalysisPart::sharing] =
            sharing_part(model, attention_errors(*options.original, model, sequences, options.pass.threads));
}

}  // namespace

const char* part_name(AnalysisPart part) { return info(part).name; }

bool needs_text(AnalysisPart part) { return info(part).text; }

bool needs_original(AnalysisPart part) { return info(part).original; }

AnalysisPart part_from_name(const std::string& name) {
    std::vector<std::string> known;
    for (const PartInfo& entry : kParts) {
        if (name == entry.name) return entry.part;
        known.emplace_back(entry.name);
    }
    fail(ErrorCode::usage, "analyze", "unknown part '{}' - {}", name, suggestion(name, known));
}

std::set<AnalysisPart> all_parts(bool with_text) {
    std::set<AnalysisPart> parts;
    for (const PartInfo& entry : kParts) {
        if (!entry.original && (with_text || !entry.text)) parts.insert(entry.part);
    }
    return parts;
}

Analysis analyze(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                 const AnalysisOptions& options) {
    Analysis out;
    // Fail before any long computation.
    if (std::any_of(options.parts.begin(), options.parts.end(), needs_text))
        add_text_parts(model, sequences, options, out);
    const std::optional<Model> unfolded = without_folds(model, DType::F16);
    const Model& whole = unfolded ? *unfolded : model;
    if (options.parts.contains(AnalysisPart::weights)) out[AnalysisPart::weights] = weights_part(whole);
    if (options.parts.contains(AnalysisPart::spectra)) out[AnalysisPart::spectra] = spectra_part(whole);
    return out;
}

}  // namespace refold
