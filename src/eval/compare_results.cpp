#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/sha256.h"
#include "core/text.h"
#include "eval/compare.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The path of the samples that a result names: as given, or beside the result.
std::string find_samples(const std::string& result, const std::string& samples) {
    const fs::path beside = fs::path(result).parent_path() / fs::path(samples).filename();
    for (const fs::path& path : {fs::path(samples), beside})
        if (fs::exists(path)) return path.string();
    fail(ErrorCode::io, "compare", "'{}' names the samples '{}', which are neither there nor beside it",
         result, samples);
}

void add_samples(ResultFile& result, const Json& entry) {
    const bool described = entry.is_object() && entry.contains("file");
    const Json& file = described ? entry["file"] : entry;
    if (!file.is_string())
        fail(ErrorCode::input, "compare", "'{}': \"samples\" is not the name of a file", result.path);
    const std::string path = find_samples(result.path, file);
    const std::string text = read_text_file(path);
    if (described && entry.contains("sha256") &&
        entry["sha256"] != sha256_hex(std::as_bytes(std::span(text))))
        fail(ErrorCode::input, "compare",
             "'{}' has changed since '{}' was written - run the evaluation again", path, result.path);
    result.samples = parse_samples(text, path);
}

// lm-evaluation-harness writes samples_<task>_<time>.jsonl beside results_<time>.json.
void add_harness_samples(ResultFile& result) {
    const fs::path path(result.path);
    const std::string name = path.stem().string();
    if (!name.starts_with("results_")) return;
    const std::string end = name.substr(7) + ".jsonl";
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string file = entry.path().filename().string();
        if (!file.starts_with("samples_") || !file.ends_with(end) || file.size() <= 8 + end.size()) continue;
        const std::string task = file.substr(8, file.size() - 8 - end.size());
        for (auto& [group, items] : parse_samples(read_text_file(entry.path().string()), file))
            result.samples[{group.task.empty() ? task : group.task, group.filter}] = std::move(items);
    }
}

struct Figure {
    double value, standard_error;
};

void add_figure(std::map<std::array<std::string, 3>, Figure>& out, const std::string& task,
                const std::string& metric, const std::string& filter, const Json& value, const Json& error) {
    if (value.is_number() && error.is_number())
        out[{task, metric, filter}] = {value.get<double>(), error.get<double>()};
}

// Figures with a standard error, of a result without samples.
std::map<std::array<std::string, 3>, Figure> figures_of(const Json& summary) {
    std::map<std::array<std::string, 3>, Figure> out;
    const auto field = [](const Json& object, const std::string& key) {
        const auto found = object.find(key);
        return found == object.end() ? Json() : *found;
    };
    if (summary.contains("protocol")) {
        add_figure(out, "", "perplexity", "none", field(summary, "perplexity"),
                   field(summary, "standard_error"));
        for (const char* metric : {"word_perplexity", "byte_perplexity", "bits_per_byte"})
            add_figure(out, "", metric, "none", field(summary, metric),
                       field(summary, std::string(metric) + "_standard_error"));
    }
    const Json results = field(summary, "results");
    if (!results.is_object()) return out;
    for (const auto& [task, metrics] : results.items()) {
        if (!metrics.is_object()) continue;
        for (const auto& [key, value] : metrics.items()) {
            const size_t comma = key.find(',');
            if (comma == std::string::npos) continue;
            const std::string metric = key.substr(0, comma), filter = key.substr(comma + 1);
            add_figure(out, task, metric, filter, value, field(metrics, metric + "_stderr," + filter));
        }
    }
    return out;
}

std::string shown(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Throws if anything differs that makes the results incomparable.
void check_same(const ResultFile& a, const ResultFile& b) {
    const auto check = [&](const std::string& what, const Json& x, const Json& y) {
        if (x.is_null() || y.is_null() || x == y) return;
        fail(ErrorCode::input, "compare", "results of different {}: got {} in '{}' and {} in '{}'", what,
             shown(x), a.path, shown(y), b.path);
    };
    const auto at = [](const Json& json, const std::string& pointer) {
        const Json::json_pointer p(pointer);
        return json.contains(p) ? json[p] : Json();
    };
    for (const char* key : {"protocol", "context", "stride"})
        check(key, at(a.summary, std::string("/") + key), at(b.summary, std::string("/") + key));
    check("data (SHA-256)", at(a.summary, "/provenance/data/sha256"),
          at(b.summary, "/provenance/data/sha256"));
    for (const char* key : {"n-shot", "versions"}) {
        const Json own = at(a.summary, std::string("/") + key), other = at(b.summary, std::string("/") + key);
        if (!own.is_object() || !other.is_object()) continue;
        for (const auto& [task, value] : own.items())
            if (other.contains(task)) check(fmt::format("{} of {}", key, task), value, other[task]);
    }
    // Samples have a hash per item, which is checked instead.
    if (!a.samples.empty() && !b.samples.empty()) return;
    const Json own = at(a.summary, "/data"), other = at(b.summary, "/data");
    if (!own.is_object() || !other.is_object()) return;
    for (const auto& [task, value] : own.items())
        if (other.contains(task))
            check(fmt::format("data (SHA-256) of {}", task), at(value, "/sha256"),
                  at(other[task], "/sha256"));
}

Differences compare_unpaired(const ResultFile& a, const ResultFile& b) {
    Differences out;
    const auto others = figures_of(b.summary);
    for (const auto& [key, own] : figures_of(a.summary)) {
        const auto found = others.find(key);
        if (found == others.end()) continue;
        const Figure& other = found->second;
        Difference row{key[0], key[2], key[1], "unpaired", 0, own.value, other.value, {}, {}, {}, {}, {}};
        const double error = std::hypot(own.standard_error, other.standard_error);
        row.low = row.difference() - 1.959964 * error;
        row.high = row.difference() + 1.959964 * error;
        if (error > 0) row.p = normal_two_sided(row.difference() / error);
        out.rows.push_back(std::move(row));
    }
    if (out.rows.empty())
        fail(ErrorCode::input, "compare",
             "'{}' and '{}' have no figure with a standard error in common, and not both have samples - run "
             "them with --samples",
             a.path, b.path);
    out.notes.emplace_back(
        "unpaired: not both results have samples; with --samples, pairs of items reveal far smaller "
        "differences");
    return out;
}

}  // namespace

ResultFile read_result(const std::string& path) {
    ResultFile out{path, {}, {}};
    const std::string text = read_text_file(path);
    if (fs::path(path).extension() == ".jsonl") {
        out.samples = parse_samples(text, path);
        return out;
    }
    out.summary = parse_json_line(text, "compare", path, 1);
    if (!out.summary.contains("protocol") && !out.summary.contains("results"))
        fail(ErrorCode::input, "compare",
             "'{}' is no result: got neither \"protocol\" (eval ppl --json) nor \"results\" (tasks)", path);
    const auto samples = out.summary.find("samples");
    if (samples != out.summary.end() && !samples->is_null()) {
        add_samples(out, *samples);
    } else {
        add_harness_samples(out);
    }
    return out;
}

Differences compare_results(const ResultFile& a, const ResultFile& b, const BootstrapOptions& options) {
    check_same(a, b);
    if (!a.samples.empty() && !b.samples.empty()) return compare_samples(a.samples, b.samples, options);
    return compare_unpaired(a, b);
}

}  // namespace refold
