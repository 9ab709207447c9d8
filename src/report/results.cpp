#include "report/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "core/text.h"
#include "report/json_access.h"
#include "report/saved_report.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string file_name(const std::string& path) {
    fs::path p(path);
    if (!p.has_filename()) p = p.parent_path();  // a directory with a trailing slash
    return p.filename().string();
}

std::string stem(const std::string& path) {
    const fs::path name = file_name(path);
    return name.extension() == ".gguf" || name.extension() == ".json" ? name.stem().string() : name.string();
}

// One hash, or hashes of several files as an object by name or a list of {"file", "sha256"}.
FileHashes hashes_of(const json& value, const std::string& file) {
    FileHashes out;
    if (value.is_string() && !text_of(value).empty()) out[file] = text_of(value);
    if (value.is_object()) {
        for (const auto& [name, hash] : value.items()) {
            if (hash.is_string()) out[name] = text_of(hash);
        }
    }
    for (const json& entry : value.is_array() ? value : json::array()) {
        if (const std::string hash = text_of(member(entry, "sha256")); !hash.empty())
            out[text_of(member(entry, "file"))] = hash;
    }
    return out;
}

void name_model(Variant& v, const std::string& path) {
    if (path.empty()) return;
    v.path = path;
    v.file = file_name(path);
    v.name = stem(path);
}

// "provenance": model, machine and command of the result. Every field is optional.
void read_provenance(const json& root, RunResult& out) {
    const json &provenance = member(root, "provenance"), &model = member(provenance, "model");
    name_model(out.variant, text_of(model.is_string() ? model : member(model, "path")));
    // The name that the user gave, unless it was a path.
    const std::string name = text_of(member(model, "name"));
    if (out.variant.path.empty()) {
        name_model(out.variant, name);
    } else if (!name.empty() && file_name(name) == name && stem(name) == name) {
        out.variant.name = name;
    }
    out.variant.hashes = hashes_of(member(model, "files"), "");
    if (out.variant.hashes.empty()) out.variant.hashes = hashes_of(member(model, "sha256"), out.variant.file);
    out.variant.recipe = text_of(member(member(model, "compression"), "recipe"));
    for (const json* at : {&provenance, &member(provenance, "machine"), &root}) {
        if (out.machine.cpu.empty()) out.machine.cpu = text_of(member(*at, "cpu"));
        if (out.machine.threads == 0) {
            const auto threads = count_of(member(*at, "threads"));
            out.machine.threads = static_cast<int>(std::min<uint64_t>(threads.value_or(0), 1 << 20));
        }
        if (out.machine.memory_bytes == 0)
            out.machine.memory_bytes = count_of(member(*at, "memory_bytes")).value_or(0);
    }
    for (const char* key : {"refold", "refold_version", "version"}) {
        if (out.version.empty()) out.version = text_of(member(provenance, key));
    }
    const json& command = member(provenance, "command");
    if (command.is_string()) out.commands.push_back(text_of(command));
    if (command.is_array()) {
        std::vector<std::string> words;
        for (const json& word : command) words.push_back(text_of(word));
        if (!words.empty()) out.commands.push_back(join(words, " "));
    }
}

// "windows: wiki.txt, windows of 1024 tokens every 512, 40 windows"
std::string perplexity_protocol(const json& root) {
    std::vector<std::string> parts;
    const json &provenance = member(root, "provenance"), &engine = member(provenance, "engine");
    for (const json* data : {&member(provenance, "data"), &member(root, "text")}) {
        std::string name = text_of(*data);
        for (const char* key : {"name", "file", "path"}) {
            if (name.empty()) name = text_of(member(*data, key));
        }
        if (name.empty()) continue;
        parts.push_back("text " + file_name(name));
        break;
    }
    const auto context = count_of(member(root, "context")), stride = count_of(member(root, "stride"));
    if (context) parts.push_back(fmt::format("{} tokens of context", *context));
    if (stride && context && *stride != *context) parts.push_back(fmt::format("every {} tokens", *stride));
    if (const auto windows = count_of(member(root, "windows")); windows && *windows > 0)
        parts.push_back(fmt::format("{} window{}", *windows, *windows == 1 ? "" : "s"));
    if (const auto documents = count_of(member(root, "documents")); documents && *documents > 0)
        parts.push_back(fmt::format("{} documents", *documents));
    for (const json* at : {&root, &engine}) {
        const std::string policy = text_of(member(*at, "kv_policy"));
        const auto budget = number_of(member(*at, "kv_budget"));
        if (budget && !policy.empty() && policy != "none") {
            parts.push_back(fmt::format("KV cache {} {:g}", policy, *budget));
            break;
        }
    }
    if (member(root, "f32") == json(true) || member(engine, "f32") == json(true))
        parts.emplace_back("float32");
    const std::string protocol = text_of(member(root, "protocol"));
    return (protocol.empty() ? "" : "protocol " + protocol + (parts.empty() ? "" : ": ")) + join(parts, ", ");
}

// null stands for infinity, which JSON lacks.
double value_or_infinity(const json& value) {
    return number_of(value).value_or(std::numeric_limits<double>::infinity());
}

void read_perplexity(const json& root, RunResult& out) {
    const std::string protocol = perplexity_protocol(root);
    const auto tokens = static_cast<int64_t>(count_of(member(root, "tokens_scored")).value_or(0));
    constexpr const char* kMetrics[][2] = {{"perplexity", "perplexity"},
                                           {"word_perplexity", "word perplexity"},
                                           {"byte_perplexity", "byte perplexity"},
                                           {"bits_per_byte", "bits per byte"}};
    for (const auto& [key, name] : kMetrics) {
        const json& value = member(root, key);
        if (!root.contains(key) ||
            !(value.is_number() || (value.is_null() && std::string(key) == "perplexity")))
            continue;
        const std::string error =
            std::string(key) == "perplexity" ? "standard_error" : std::string(key) + "_standard_error";
        out.variant.perplexities.push_back(
            {value_or_infinity(value), number_of(member(root, error.c_str())), tokens, protocol, name});
    }
}

// Two models on one text: what the second loses.
void read_model_comparison(const json& root, RunResult& out) {
    json second = member(root, "b");
    for (const char* key : {"protocol", "context", "stride", "documents"})
        if (root.contains(key)) second[key] = root[key];
    read_provenance(second, out);
    read_perplexity(second, out);
    const auto divergence = number_of(member(member(root, "logits"), "kl_divergence"));
    if (!divergence) return;
    RunResult first;
    read_provenance(member(root, "a"), first);
    const auto tokens = static_cast<int64_t>(count_of(member(second, "tokens_scored")).value_or(0));
    out.variant.perplexities.push_back({*divergence, std::nullopt, tokens, perplexity_protocol(second),
                                        "KL divergence from " + first.variant.name});
}

void read_generation(const json& root, RunResult& out) {
    name_model(out.variant, text_of(member(root, "model")));
    out.variant.prompt = text_of(member(root, "prompt"));
    out.variant.generated = text_of(member(root, "text"));
}

// Whether lm-evaluation-harness marks the metric as better when lower.
bool is_better_low(const json& root, const std::string& task, const std::string& metric) {
    const json& given = member(member(member(root, "higher_is_better"), task.c_str()), metric.c_str());
    if (given.is_boolean()) return !given.get<bool>();
    return metric.find("perplexity") != std::string::npos ||
           metric.find("bits_per_byte") != std::string::npos;
}

std::string task_protocol(const json& root, const std::string& task) {
    std::vector<std::string> parts;
    const json& shots = member(member(root, "n-shot"), task.c_str());
    if (const auto n = count_of(shots)) parts.push_back(fmt::format("{} shot{}", *n, *n == 1 ? "" : "s"));
    const json& samples = member(member(root, "n-samples"), task.c_str());
    const auto effective = count_of(member(samples, "effective")),
               original = count_of(member(samples, "original"));
    if (effective && original && *effective != *original)
        parts.push_back(fmt::format("{} of {} items", *effective, *original));
    else if (effective)
        parts.push_back(fmt::format("{} items", *effective));
    return join(parts, ", ");
}

// {"results": {task: {"acc,none": 0.5, "acc_stderr,none": 0.01, "alias": ...}}}. The filter after the comma
// is kept only when it is not "none".
void read_tasks(const json& root, RunResult& out) {
    for (const auto& [task, metrics] : member(root, "results").items()) {
        if (!metrics.is_object()) continue;
        for (const auto& [key, value] : metrics.items()) {
            const size_t comma = key.find(',');
            const std::string metric = key.substr(0, comma),
                              filter = comma == std::string::npos ? "none" : key.substr(comma + 1);
            const bool about_items = metric == "sample_len" || metric == "sample_count" || metric == "name";
            if (!value.is_number() || metric.ends_with("_stderr") || about_items) continue;
            const std::string error =
                metric + "_stderr" + (comma == std::string::npos ? "" : key.substr(comma));
            out.variant.tasks.push_back({task, metric + (filter == "none" ? "" : ", " + filter),
                                         value.get<double>(), number_of(member(metrics, error.c_str())),
                                         task_protocol(root, task), !is_better_low(root, task, metric)});
        }
    }
    const json& config = member(root, "config");
    for (const json* name : {&member(root, "model_name"), &member(config, "model_args"),
                             &member(root, "model"), &member(config, "model")}) {
        if (!out.variant.name.empty()) break;
        std::string text = text_of(*name);
        if (text.starts_with("pretrained=")) text = text.substr(11, text.find(',') - 11);
        if (!text.empty()) name_model(out.variant, text);
    }
    // For a directory this is a combined hash, which matches no single file.
    if (out.variant.hashes.empty() && out.variant.file.ends_with(".gguf"))
        out.variant.hashes = hashes_of(member(config, "model_sha256"), out.variant.file);
    if (out.machine.threads == 0)
        out.machine.threads =
            static_cast<int>(std::min<uint64_t>(count_of(member(config, "threads")).value_or(0), 1 << 20));
}

std::optional<SpeedFigure> speed_of(const json& value, const std::string& baseline) {
    const auto own = number_of(member(value, "tokens_per_s"));
    if (!own) return std::nullopt;
    return SpeedFigure{*own, number_of(member(value, "baseline_tokens_per_s")),
                       number_of(member(value, "ratio")), baseline};
}

void read_bench(const json& root, RunResult& out) {
    const json& baseline = member(root, "baseline");
    const std::string engine = text_of(member(baseline, "engine"));
    const std::string file = file_name(text_of(member(baseline, "model")));
    std::string name = engine == "llama.cpp" || engine.empty() ? "stock llama.cpp" : engine;
    if (name == engine || (!file.empty() && file != file_name(text_of(member(root, "model")))))
        name += " on " + file;
    out.variant.prefill = speed_of(member(root, "prefill"), name);
    out.variant.decode = speed_of(member(root, "decode"), name);
    out.variant.resident_weight_bytes = count_of(member(root, "weight_bytes_resident"));
    out.variant.resident_set_bytes = count_of(member(root, "rss_bytes"));
    if (out.variant.name.empty()) name_model(out.variant, text_of(member(root, "model")));
}

void read_cost(const json& cost, Variant& v) {
    v.parameters = count_of(member(cost, "parameters"));
    v.kv_bytes_per_token = count_of(member(cost, "kv_bytes_per_token"));
}

// The SVD errors that decomposing steps have recorded; LASER's results are such SVDs themselves.
void read_svd_errors(const json& step, Variant& v) {
    const auto add = [&](const json& entry, const json& rank_of_it) {
        const auto slot = matrix_of(member(entry, "slot"));
        const auto rank = count_of(rank_of_it);
        const auto error = number_of(member(entry, "relative_error"));
        const json& layers = member(entry, "layers");
        if (!slot || !rank || !error) return;
        for (const json& layer : layers.is_array() ? layers : json::array()) {
            if (const auto p = count_of(layer))
                v.svd_errors.push_back({*p, *slot, static_cast<int64_t>(*rank), *error});
        }
    };
    const json& details = member(step, "details");
    const json &stacks = member(details, "stacks"), &matrices = member(details, "matrices");
    for (const json& stack : stacks.is_array() ? stacks : json::array()) {
        const json& svd = member(stack, "svd");
        for (const json& entry : svd.is_array() ? svd : json::array()) add(entry, member(stack, "svd_rank"));
    }
    const bool laser = text_of(member(step, "method")) == "laser" &&
                       text_of(member(member(step, "options"), "svd")) == "exact";
    for (const json& matrix : laser&& matrices.is_array() ? matrices : json::array())
        add(matrix, member(matrix, "rank"));
}

void read_compression(const json& root, RunResult& out) {
    Variant before;
    name_model(before, text_of(member(root, "model")));
    read_cost(member(root, "before"), before);
    out.before.push_back(std::move(before));
    name_model(out.variant, text_of(member(root, "output")));
    if (out.variant.name.empty()) out.variant.name = stem(out.label);  // a dry run
    out.variant.recipe = text_of(member(root, "recipe"));
    out.variant.file_bytes = count_of(member(root, "file_bytes"));
    read_cost(member(root, "after"), out.variant);
    const json& steps = member(root, "steps");
    for (const json& step : steps.is_array() ? steps : json::array()) {
        std::string line = text_of(member(step, "method"));
        const auto seconds = number_of(member(step, "seconds"));
        if (seconds && *seconds >= 0 && *seconds < 1e9) line += " (" + format_seconds(*seconds) + ")";
        const json& lines = member(step, "lines");
        for (const json& more : lines.is_array() ? lines : json::array()) line += "; " + text_of(more);
        out.variant.steps.push_back(line);
        read_svd_errors(step, out.variant);
        const json& size = member(member(step, "details"), "equal_size");
        if (const auto beyond = number_of(member(size, "difference")))
            out.variant.beyond_equal_size = *beyond;
    }
}

bool is_analysis(const json& root) {
    constexpr std::array kParts = {"weights", "spectra", "softmax", "heads", "modules", "sharing"};
    return root.contains("layers") && std::any_of(kParts.begin(), kParts.end(), [&](const char* part) {
               return member(root, part).is_object();
           });
}

}  // namespace

RunResult parse_run(const std::string& text, const std::string& label) {
    const nlohmann::ordered_json parsed = try_parse_json<nlohmann::ordered_json>(text, nullptr, kLargeJson);
    if (parsed.is_discarded())
        fail(ErrorCode::input, "report", "{}: this is not JSON - give what a verb printed with --json",
             label);
    const json root = parsed;
    if (is_saved_report(root)) return parse_report(root, label);
    RunResult out;
    out.label = label;
    read_provenance(root, out);
    if (member(root, "before").is_object() && member(root, "after").is_object()) {
        read_compression(root, out);
    } else if (member(root, "results").is_object()) {
        read_tasks(root, out);
    } else if (member(root, "prefill").is_object() && member(root, "decode").is_object()) {
        read_bench(root, out);
    } else if (is_analysis(root)) {
        json findings = root;
        findings.erase("provenance");
        out.variant.analyses.push_back(findings.dump());
        if (out.variant.name.empty()) name_model(out.variant, text_of(member(root, "model")));
    } else if (member(root, "a").is_object() && member(member(root, "b"), "tokens_scored").is_number()) {
        read_model_comparison(root, out);
    } else if (root.contains("prompt") && root.contains("generated_tokens")) {
        read_generation(root, out);
    } else if (member(root, "tokens_scored").is_number()) {
        read_perplexity(root, out);
        if (out.variant.name.empty()) name_model(out.variant, text_of(member(root, "model")));
    } else {
        fail(ErrorCode::input, "report",
             "{}: this JSON is no result of refold - expected what compress, eval ppl, eval tasks, compare, "
             "bench, run, analyze or report print with --json",
             label);
    }
    return out;
}

RunResult read_run(const std::string& path) { return parse_run(read_text_file(path), path); }

}  // namespace refold
