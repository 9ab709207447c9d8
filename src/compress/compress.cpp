#include "compress/compress.h"

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file_hash.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "core/text.h"
#include "model/finite.h"
#include "model/metadata_keys.h"
#include "model/validate.h"
#include "vocab/trim.h"

namespace refold {
namespace {

using nlohmann::json;

// Path, size and time of a model's files: tells models apart without reading their weights.
std::string files_of(const Model& model) {
    std::string all;
    if (model.source == nullptr) return all;
    for (const auto& file : model.source->files()) {
        std::error_code none;
        const auto time = std::filesystem::last_write_time(file->path(), none);
        all += fmt::format("{} {} {}\n", std::filesystem::absolute(file->path()).lexically_normal().string(),
                           file->bytes().size(), time.time_since_epoch().count());
    }
    return all;
}

// A hash of everything that results of the first `steps` steps depend on, without reading weights.
// `computations`: those of the steps before.
std::string identity_of(const Model& source, const Recipe& recipe, size_t steps, const StepInputs& inputs,
                        const std::string& computations) {
    std::string all = files_of(source) + computations + "\n";
    if (inputs.original != nullptr) all += "original " + files_of(*inputs.original);
    // Of the recipe the steps alone: where its texts lie changes nothing.
    Recipe part;
    part.steps = first_steps(recipe, steps).steps;
    all += to_yaml(part);
    if (const Calibration* text = inputs.calibration; text != nullptr)
        all += fmt::format("{} {} {}", text->hash, text->options.tokens, text->options.length);
    Sha256 hash;
    hash.update(std::as_bytes(std::span(all)));
    return hash.hex();
}

// The record that the source was written with; null without one. A record is nested in those of later models,
// and of results, and nobody reads more than JsonLimits::depth levels.
json earlier_provenance(const Model& source) {
    if (!source.metadata.has(kProvenanceKey)) return nullptr;
    std::string problem;
    json earlier = try_parse_json(source.metadata.string(kProvenanceKey), &problem, {.depth = 90});
    if (!problem.empty())
        fail(ErrorCode::unsupported, "compress",
             "{}: the record of how it was made (refold.provenance) cannot be kept: {} - compress an earlier "
             "model, with all steps in one recipe",
             source.label, problem);
    return earlier;
}

json origin_of(const Model& source) {
    json origin = json::object();
    // The name without its folder: the same recipe on the same files gives the same bytes anywhere.
    origin["file"] = std::filesystem::path(source.label).filename().string();
    if (source.source != nullptr && source.source->files().size() == 1) {
        origin["sha256"] = file_sha256(*source.source->files().front());
    } else if (source.source != nullptr) {
        for (const auto& file : source.source->files()) {
            origin["sha256"][std::filesystem::path(file->path()).filename().string()] = file_sha256(*file);
        }
    }
    if (const json earlier = earlier_provenance(source); !earlier.is_null()) origin["provenance"] = earlier;
    return origin;
}

json provenance(const Model& source, const Recipe& recipe, const std::string& version,
                const StepInputs& inputs) {
    json out = {{"refold", version}, {"source", origin_of(source)}, {"recipe", to_yaml(recipe)}};
    if (inputs.original != nullptr) out["original"] = origin_of(*inputs.original);
    if (const Calibration* calibration = inputs.calibration; calibration != nullptr) {
        json texts = json::array();
        for (const auto& text : calibration->texts)
            texts.push_back({{"text", text.name}, {"sha256", text.hash}});
        out["calibration"] = {{"texts", texts},
                              {"tokens", calibration->options.tokens},
                              {"length", calibration->options.length}};
    }
    return out;
}

json cost_json(const Cost& cost) {
    return {{"parameters", cost.parameters},
            {"bytes", cost.bytes},
            {"kv_bytes_per_token", cost.kv_bytes_per_token},
            {"flops_per_token", cost.flops_per_token},
            {"attention_flops_per_context_token", cost.attention_flops_per_context_token}};
}

// Throws unless the original has a shape that the model can have been made from.
void check_original(const Model& model, const Model& original) {
    const ModelConfig &a = original.config, &b = model.config;
    const auto fits = [&](const char* what, int64_t there, int64_t here) {
        if (there != here)
            fail(ErrorCode::input, "compress",
                 "--original {}: {} is {}, {} has {}: one was not made from the other", original.label, what,
                 there, model.label, here);
    };
    if (original.family != model.family)
        fail(ErrorCode::input, "compress", "--original {}: another architecture than {}", original.label,
             model.label);
    fits("the width", a.n_embd, b.n_embd);
    if (a.n_vocab != b.n_vocab && model.metadata.has(kKeptTokensKey))
        fail(ErrorCode::input, "compress",
             "--original {}: its vocabulary has {} tokens, {} was trimmed to {} of them: do this step first, "
             "and "
             "trim_vocab last",
             original.label, a.n_vocab, model.label, b.n_vocab);
    fits("the vocabulary", a.n_vocab, b.n_vocab);
    if (original.shapes_only != model.shapes_only)
        fail(ErrorCode::input, "compress", "--original {}: of one model there are only shapes, no weights",
             original.label);
}

// A step that changes the ids of tokens comes last: the steps share the calibration text, whose ids are those
// of the original.
void check_order(const Recipe& recipe) {
    for (size_t s = 0; s + 1 < recipe.steps.size(); ++s) {
        if (const Method& method = *recipe.steps[s].method; method.last)
            fail(ErrorCode::usage, "compress",
                 "step {}: {} must be the last step: the original and the texts of steps after it have other "
                 "token ids",
                 s + 1, method.name);
    }
}

// Methods read rows of tensors, or replace tensors by ones of the same type.
void check_rows(const Model& model) {
    for (const auto& [name, tensor] : model.tensors) {
        if (tensor.fold() > 1)
            fail(ErrorCode::unsupported, "compress",
                 "{}: several rows of {} lie together in blocks of {}, and no method changes such matrices - "
                 "make quantize the last step, or compress the model before it was quantized",
                 model.label, name, refold::name(tensor.type));
    }
    for (const auto& [slot, expression] : model.topology.globals) {
        if (std::holds_alternative<RowParts>(expression))
            fail(ErrorCode::unsupported, "compress",
                 "{}: the rows of {} have several types, and no method changes such matrices - make quantize "
                 "the last step, or compress the model before it was quantized",
                 model.label, slot_name(slot));
    }
}

// What a dry run has not.
struct Run {
    Work& work;
    const std::string& version;
};

// A dry run when `run` is null.
Compression apply(const Model& model, const Recipe& recipe, const Run* run, const StepInputs& inputs) {
    Work* const work = run == nullptr ? nullptr : &run->work;
    check_order(recipe);
    if (inputs.original != nullptr) check_original(model, *inputs.original);
    if (work != nullptr) work->begin();
    Compression result{model, recipe, account(model).model, {}};
    for (size_t s = 0; s < recipe.steps.size(); ++s) {
        const RecipeStep& recipe_step = recipe.steps[s];
        const auto start = std::chrono::steady_clock::now();
        StepResult done{recipe_step.method, {}, {}, 0};
        const std::string computations = work == nullptr ? "" : work->computations();
        Step step{recipe_step.options,
                  done.report,
                  work,
                  inputs.original == nullptr ? model : *inputs.original,
                  inputs.calibration,
                  identity_of(model, recipe, s + 1, inputs, computations),
                  inputs.threads,
                  inputs.training,
                  s + 1,
                  identity_of(model, recipe, s, inputs, computations),
                  [&, s](const Calibration& calibration) {
                      StepInputs others = inputs;
                      others.calibration = &calibration;
                      return identity_of(model, recipe, s, others, computations);
                  }};
        if (run != nullptr)
            step.provenance = [&, s] {
                return provenance(model, first_steps(recipe, s + 1), run->version, inputs).dump();
            };
        try {
            if (!recipe_step.method->only_adds) check_rows(result.model);
            result.model = recipe_step.method->apply(result.model, step);
            validate(result.model);
        } catch (const Error& error) {
            throw Error(error.code(),
                        fmt::format("{} (step {}: {})", error.what(), s + 1, recipe_step.method->name));
        }
        done.cost = account(result.model).model;
        done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        result.steps.push_back(std::move(done));
    }
    return result;
}

}  // namespace

std::string provenance_of_edits(const Model& source, const std::string& recipe, const std::string& version) {
    return json{{"refold", version}, {"source", origin_of(source)}, {"recipe", recipe}}.dump();
}

std::string identity_of(const Model& model, const Calibration& calibration) {
    return identity_of(model, {}, 0, {.calibration = &calibration}, "");
}

Compression plan(const Model& model, const Recipe& recipe, const StepInputs& inputs) {
    return apply(model, recipe, nullptr, {.original = inputs.original});
}

Compression compress(const Model& model, const Recipe& recipe, const std::string& version, Work& work,
                     const StepInputs& inputs) {
    if (const Method* method = first_calibrated(recipe); method != nullptr && inputs.calibration == nullptr)
        fail(ErrorCode::usage, "compress",
             "{} looks at activations: give a text with --calib FILE, or 'calibration' in the recipe",
             method->name);
    if (model.shapes_only)
        fail(ErrorCode::input, "compress",
             "{}: there are only shapes, no weights - give --dry-run, or the whole model", model.label);
    for (const Model* given : {&model, inputs.original})
        if (given != nullptr) earlier_provenance(*given);  // throws before any work
    check_finite(model, inputs.threads);
    if (inputs.original != nullptr) check_finite(*inputs.original, inputs.threads);
    const Run run{work, version};
    Compression result = apply(model, recipe, &run, inputs);
    const json made = provenance(model, recipe, version, inputs);
    result.model.metadata.set(kProvenanceKey, GgufValue::string(made.dump()));
    return result;
}

std::string to_json(const Compression& compression) {
    json out = {{"model", compression.model.label},
                {"recipe", to_yaml(compression.recipe)},
                {"before", cost_json(compression.before)},
                {"after", cost_json(compression.after())},
                {"steps", json::array()}};
    for (const auto& step : compression.steps) {
        json options = json::object();
        const auto& values = compression.recipe.steps[out["steps"].size()].options.entries();
        for (size_t i = 0; i < values.size(); ++i) {
            const auto kind = step.method->options[i].kind;
            const bool words = kind == OptionSpec::Kind::text || kind == OptionSpec::Kind::choice;
            options[values[i].first] =
                words ? json(values[i].second) : parse_json(values[i].second, "compress", "an option");
        }
        out["steps"].push_back(
            {{"method", step.method->name},
             {"options", options},
             {"seconds", step.seconds},
             {"after", cost_json(step.cost)},
             {"lines", step.report.lines},
             {"details", parse_json(step.report.details, "compress", "a report", kLargeJson)}});
    }
    return out.dump(2);
}

std::string to_text(const Compression& compression) {
    std::string out;
    for (const auto& step : compression.steps) {
        out += fmt::format("{}  ({}, {})\n", step.method->name, step.method->paper,
                           format_seconds(step.seconds));
        for (const auto& line : step.report.lines) out += "  " + line + "\n";
    }
    TextTable table({"", "before", "after", "after / before"});
    const auto add = [&](const char* name, uint64_t before, uint64_t after, std::string (*format)(uint64_t)) {
        table.add({name, format(before), format(after),
                   before == 0 ? "-"
                               : fmt::format("{:.2f} %", 100.0 * static_cast<double>(after) /
                                                             static_cast<double>(before))});
    };
    const Cost& before = compression.before;
    const Cost& after = compression.after();
    add("parameters stored", before.parameters, after.parameters, format_count);
    add("bytes of weights", before.bytes, after.bytes, format_bytes);
    add("KV bytes per token", before.kv_bytes_per_token, after.kv_bytes_per_token, format_bytes);
    add("FLOPs per token", before.flops_per_token, after.flops_per_token, format_count);
    return out + "\n" + table.str();
}

}  // namespace refold
