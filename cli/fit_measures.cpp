#include "cli/fit_measures.h"

#include <algorithm>
#include <filesystem>

#include "cli/options.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/file_hash.h"
#include "core/files.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "core/text.h"
#include "eval/compare.h"
#include "eval/protocols.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

EngineOptions engine_options(int threads) {
    EngineOptions out;
    out.threads = threads;
    return out;
}

Json hashes_of(const Model& model) {
    Json out = Json::array();
    for (const auto& file : model.source->files()) out.push_back(remembered_sha256(file->path()));
    return out;
}

Json json_of(const FrontierFigures& x) {
    Json out = {{"kl_divergence", x.kl_divergence},
                {"top1_agreement", x.top1_agreement},
                {"perplexity", x.perplexity},
                {"standard_error", x.standard_error}};
    if (x.kl_low && x.kl_high) out["kl_divergence_interval"] = {*x.kl_low, *x.kl_high};
    return out;
}

FrontierFigures figures_of(const Json& json) {
    FrontierFigures out;
    out.kl_divergence = json.at("kl_divergence");
    out.top1_agreement = json.at("top1_agreement");
    out.perplexity = json.at("perplexity");
    out.standard_error = json.at("standard_error");
    if (json.contains("kl_divergence_interval")) {
        out.kl_low = json["kl_divergence_interval"].at(0).get<double>();
        out.kl_high = json["kl_divergence_interval"].at(1).get<double>();
    }
    return out;
}

}  // namespace

FitMeasures::FitMeasures(const PerplexityArguments& arguments, int threads, const std::string& original,
                         std::string kept)
    : arguments_(arguments),
      engine_(engine_options(threads)),
      content_(read_text_file(arguments.text)),
      kept_(std::move(kept)),
      data_(data_file(arguments.text, content_)),
      original_(perplexity_input(arguments_, engine_, original, content_)) {
    const Json key = {{"model", hashes_of(original_.model)},
                      {"text", data_.sha256},
                      {"protocol", protocol_json(original_.plan)}};
    if (fs::exists(kept_))
        values_ = try_parse_json<nlohmann::ordered_json>(read_text_file(kept_), nullptr, kLargeJson);
    if (fs::exists(kept_) && !(values_.is_object() && values_.contains("key") && values_.contains("files")))
        fail(ErrorCode::usage, "fit",
             "'{}' would be replaced, and has no measurements of refold - move it away, or choose another "
             "output",
             kept_);
    if (!values_.is_object() || !values_.contains("key") || values_["key"] != key ||
        !values_.contains("files") || !values_["files"].is_object())
        values_ = {{"key", key}, {"files", Json::object()}};
}

std::string FitMeasures::text() const {
    const PerplexityOptions& options = original_.plan.options;
    return fmt::format("{}, {}: {}", fs::path(arguments_.text).filename().string(),
                       protocol_name(options.protocol), protocol_text(options));
}

PerplexityInput FitMeasures::input(const std::string& path) const {
    return perplexity_input(arguments_, engine_, path, content_, original_.plan.options.context);
}

void FitMeasures::check(const std::string& path) const {
    if (input(path).plan.tokens != original_.plan.tokens)
        fail(ErrorCode::usage, "fit",
             "--compare {}: it reads the text as other tokens than the original, so that they cannot be "
             "compared",
             path);
}

FrontierFigures FitMeasures::measure(const std::string& path) {
    const std::string hash = remembered_sha256(path);
    try {
        const Json& files = values_.at("files");
        if (files.contains(hash) && values_.contains("original")) return figures_of(files[hash]);
    } catch (const nlohmann::json::exception&) {  // a changed file
    }
    const PerplexityInput other = input(path);
    const auto a = make_single_sequence(original_.model, original_.engine),
               b = make_single_sequence(other.model, other.engine);
    const ModelComparison found = compare_models(*a, original_.plan, *b, other.plan, {});
    if (!found.logits) fail(ErrorCode::input, "fit", "{}: its vocabulary is not the original's", path);
    FrontierFigures out{.kl_divergence = found.logits->kl_divergence,
                        .top1_agreement = found.logits->top1_agreement,
                        .perplexity = found.b.perplexity,
                        .standard_error = found.b.standard_error};
    if (found.logits->kl_interval) {
        out.kl_low = found.logits->kl_interval->low;
        out.kl_high = found.logits->kl_interval->high;
    }
    values_["original"] = {{"perplexity", found.a.perplexity}, {"standard_error", found.a.standard_error}};
    values_["files"][hash] = json_of(out);
    write_file(kept_, values_.dump(1) + "\n");
    return out;
}

}  // namespace refold::cli
