#include "eval/samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_lines.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

struct Line {
    const Json& json;
    const std::string& name;
    size_t number;

    template <typename... Args>
    [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
        fail(ErrorCode::input, "samples", "'{}', line {}: {}", name, number,
             fmt::format(format, std::forward<Args>(args)...));
    }
    std::string text(const char* key) const {
        const auto found = json.find(key);
        if (found == json.end() || found->is_null()) return "";
        if (!found->is_string()) bad("\"{}\" is not a string", key);
        return *found;
    }
};

bool is_figure(const Json& value) { return value.is_number() || value.is_boolean(); }

bool is_pair(const Json& value) {
    return value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
}

double figure_of(const Json& value) {
    return value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
}

SampleValue value_of(const Line& line, const std::string& metric, const Json& value) {
    SampleValue out;
    if (is_pair(value)) {
        out = {value[0].get<double>(), value[1].get<double>()};
    } else if (is_figure(value)) {
        out.value = figure_of(value);
        // LAMBADA's perplexity is the log likelihood of one target.
        if (metric == "perplexity") out.weight = 1;
    } else {
        line.bad("\"{}\" is {}, expected a number or [log likelihood, units]", metric, value.type_name());
    }
    if (!std::isfinite(out.value) || (out.weight && !(*out.weight > 0 && std::isfinite(*out.weight))))
        line.bad("\"{}\" is not a finite number, or its units are not above 0", metric);
    return out;
}

std::vector<std::string> metric_names(const Line& line) {
    std::vector<std::string> names;
    if (const auto listed = line.json.find("metrics"); listed != line.json.end()) {
        if (!listed->is_array()) line.bad("\"metrics\" is not a list");
        for (const Json& name : *listed) {
            if (!name.is_string() || !line.json.contains(name.get<std::string>()))
                line.bad("\"metrics\" lists what the line does not have");
            names.push_back(name);
        }
        return names;
    }
    // Fields that describe the item and are no metrics.
    static const std::set<std::string> kOther = {"doc_id", "target", "doc", "idx", "id", "version"};
    for (const auto& [key, value] : line.json.items()) {
        const bool pair = is_pair(value) && (key.ends_with("perplexity") || key == "bits_per_byte");
        if (!kOther.contains(key) && (is_figure(value) || pair)) names.push_back(key);
    }
    return names;
}

}  // namespace

Samples parse_samples(const std::string& text, const std::string& name) {
    Samples out;
    for_lines(text, [&](std::string_view content, size_t number) {
        if (content.find_first_not_of(" \t\r") == std::string_view::npos) return;
        const Json json = parse_json_line(content, "samples", name, number);
        const Line line{json, name, number};
        const auto id = json.find("doc_id");
        if (id == json.end() || !id->is_number_integer()) line.bad("no whole number \"doc_id\"");
        Sample sample{line.text("doc_hash"), number, {}};
        for (const std::string& metric : metric_names(line))
            sample.metrics[metric] = value_of(line, metric, json[metric]);
        if (sample.metrics.empty()) line.bad("no metric");
        const std::string filter = line.text("filter");
        auto& group = out[{line.text("task"), filter.empty() ? "none" : filter}];
        const auto [earlier, added] = group.emplace(id->get<int64_t>(), std::move(sample));
        if (!added) line.bad("doc_id {} is that of line {} too", id->get<int64_t>(), earlier->second.line);
    });
    if (out.empty()) fail(ErrorCode::input, "samples", "'{}' has no items", name);
    return out;
}

std::string perplexity_samples(const PerplexityPlan& plan, const PerplexityResult& result) {
    std::string out;
    for (size_t i = 0; i < plan.items.size(); ++i) {
        const PerplexityItem& item = plan.items[i];
        const double log_likelihood = -result.item_nll[i];
        Json line = {{"doc_id", i}, {"doc_hash", item.hash}, {"metrics", Json::array()}};
        const auto add = [&](const char* metric, int64_t units) {
            if (units == 0) return;  // an empty document
            line["metrics"].push_back(metric);
            line[metric] = {log_likelihood, units};
        };
        add("perplexity", result.item_tokens[i]);
        if (plan.options.protocol == PerplexityProtocol::lm_eval) {
            add("word_perplexity", item.words);
            add("byte_perplexity", item.bytes);
            add("bits_per_byte", item.bytes);
        }
        out += line.dump() + "\n";
    }
    return out;
}

}  // namespace refold
