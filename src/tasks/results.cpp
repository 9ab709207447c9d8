#include "tasks/results.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

const char* output_name(TaskOutput output) {
    switch (output) {
        case TaskOutput::multiple_choice: return "multiple_choice";
        case TaskOutput::loglikelihood: return "loglikelihood";
        case TaskOutput::generate_until: return "generate_until";
        case TaskOutput::masked_lm: return "masked_lm";
        case TaskOutput::label_probability: return "label_probability";
    }
    return "";
}

// Versions: "1" and "1.0" are numbers in YAML.
Json version_of(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return text;
    if (text.find('.') == std::string::npos) return static_cast<int64_t>(value);
    return value;
}

Json config_of(const TaskRun& run) {
    const TaskSpec& spec = run.task.spec;
    Json config = {{"task", spec.name}};
    if (!spec.group.empty()) config["group"] = spec.subgroup.empty() ? spec.group : spec.subgroup;
    config.update({{"output_type", output_name(spec.output)},
                   {"description", spec.description},
                   {"target_delimiter", spec.target_delimiter},
                   {"fewshot_delimiter", spec.fewshot_delimiter},
                   {"num_fewshot", spec.shots}});
    Json metrics = Json::array();
    for (const std::string& metric : spec.metrics)
        metrics.push_back({{"metric", metric}, {"higher_is_better", higher_is_better(metric)}});
    config["metric_list"] = std::move(metrics);
    if (spec.output == TaskOutput::generate_until) {
        config["generation_kwargs"] = {{"until", spec.generation.until},
                                       {"max_gen_toks", spec.generation.max_tokens},
                                       {"do_sample", false}};
    }
    config["metadata"] = {{"version", version_of(spec.version)}};
    return config;
}

std::string key(const std::string& metric, const char* what = "") { return metric + what + ",none"; }

Json error_or_none(const std::optional<double>& error) { return error ? Json(*error) : Json("N/A"); }

Json task_result(const TaskRun& run) {
    Json result = {
        {"name", run.task.spec.name}, {"alias", run.task.spec.name}, {"sample_len", run.task.items.size()}};
    for (size_t m = 0; m < run.results.size(); ++m) {
        const std::string& metric = run.values[m].metric;
        result[key(metric)] = run.results[m].value;
        result[key(metric, "_stderr")] = error_or_none(run.results[m].standard_error);
    }
    return result;
}

// Accumulates one metric over the tasks of a group.
struct GroupFigure {
    double sum = 0, squares = 0, items = 0, tasks = 0;
    bool has_errors = true;

    void add(const MetricResult& result, double count) {
        sum += result.value * count;
        items += count;
        tasks += 1;
        has_errors = has_errors && result.standard_error.has_value();
        const double error = result.standard_error.value_or(0);
        squares += (count - 1) * error * error * count;
    }
    std::optional<double> error() const {
        if (!has_errors) return std::nullopt;
        return std::sqrt(squares / (items - tasks) / items);
    }
};

Json group_result(const std::string& group, const std::vector<const TaskRun*>& members) {
    std::vector<std::string> metrics;
    std::map<std::string, GroupFigure> figures;
    size_t items = 0;
    for (const TaskRun* run : members) {
        items += run->task.items.size();
        for (size_t m = 0; m < run->results.size(); ++m) {
            const std::string& metric = run->values[m].metric;
            if (!figures.contains(metric)) metrics.push_back(metric);
            figures[metric].add(run->results[m], static_cast<double>(run->task.items.size()));
        }
    }
    Json result = {{"name", group}, {"alias", group}, {"sample_len", items}};
    for (const std::string& metric : metrics) {
        const GroupFigure& figure = figures[metric];
        result[key(metric)] = figure.sum / figure.items;
        result[key(metric, "_stderr")] = error_or_none(figure.error());
    }
    return result;
}

}  // namespace

Json results_json(std::span<const TaskRun> runs) {
    Json out = {{"results", Json::object()}};
    std::map<std::string, std::vector<const TaskRun*>> groups;
    std::map<std::string, std::vector<std::string>> parts;  // group -> subgroups and tasks
    for (const TaskRun& run : runs) {
        const TaskSpec& spec = run.task.spec;
        for (const std::string& group : {spec.group, spec.subgroup})
            if (!group.empty()) groups[group].push_back(&run);
        if (spec.group.empty()) continue;
        std::vector<std::string>& own = parts[spec.group];
        if (spec.subgroup.empty()) {
            own.push_back(spec.name);
        } else {
            if (std::ranges::find(own, spec.subgroup) == own.end()) own.push_back(spec.subgroup);
            parts[spec.subgroup].push_back(spec.name);
        }
    }
    for (const auto& [group, members] : groups) {
        const Json result = group_result(group, members);
        out["results"][group] = result;
        out["groups"][group] = result;
        out["group_subtasks"][group] = parts[group];
        out["versions"][group] = version_of(members.front()->task.spec.version);
        out["n-shot"][group] = members.front()->task.spec.shots;
        for (const std::string& metric : members.front()->task.spec.metrics)
            out["higher_is_better"][group][metric] = higher_is_better(metric);
    }
    for (const TaskRun& run : runs) {
        const TaskSpec& spec = run.task.spec;
        const size_t items = run.task.items.size();
        out["results"][spec.name] = task_result(run);
        out["configs"][spec.name] = config_of(run);
        out["versions"][spec.name] = version_of(spec.version);
        out["n-shot"][spec.name] = spec.shots;
        for (const std::string& metric : spec.metrics)
            out["higher_is_better"][spec.name][metric] = higher_is_better(metric);
        out["n-samples"][spec.name] = {
            {"original", run.task.original > 0 ? run.task.original : static_cast<int64_t>(items)},
            {"effective", items}};
        out["truncated"][spec.name] = run.cut_requests();
        out["data"][spec.name] = {{"file", run.task.data_file}, {"sha256", run.task.data_sha256}};
        for (const auto& [file, hash] : run.task.more_files)
            out["data"][spec.name]["more"].push_back({{"file", file}, {"sha256", hash}});
        if (!run.task.fewshot_file.empty())
            out["data"][spec.name]["fewshot"] = {{"file", run.task.fewshot_file},
                                                 {"sha256", run.task.fewshot_sha256}};
    }
    return out;
}

}  // namespace refold
