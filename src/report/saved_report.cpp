#include "report/saved_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "report/json_access.h"
#include "report/markup.h"

namespace refold {
namespace {

using nlohmann::json;

// More than any model has; protects against files whose sizes would exhaust memory.
constexpr uint64_t kMostHeads = 512, kMostCells = uint64_t{1} << 18, kMostThreads = 1 << 20;

// A value of the report with its path for error messages.
class Value {
public:
    Value(const json& value, const std::string& label, std::string path)
        : json_(value), label_(label), path_(std::move(path)) {}

    void expect(bool right, const std::string& expected) const {
        if (right) return;
        const auto replace = json::error_handler_t::replace;
        fail(ErrorCode::input, "report", "{}: {}: got {}, expected {} - this report was damaged or changed",
             label_, path_.empty() ? "the document" : path_,
             json_.is_null() ? "nothing" : shorten(json_.dump(-1, ' ', false, replace), 40), expected);
    }

    bool none() const { return json_.is_null(); }
    const json& raw() const { return json_; }

    Value operator[](const char* key) const {
        expect(json_.is_object(), "an object");
        return {member(json_, key), label_, path_.empty() ? key : fmt::format("{}.{}", path_, key)};
    }
    // null is an empty list.
    std::vector<Value> list() const {
        std::vector<Value> out;
        expect(none() || json_.is_array(), "a list");
        for (size_t i = 0; i < json_.size(); ++i)
            out.emplace_back(json_[i], label_, fmt::format("{}[{}]", path_, i));
        return out;
    }
    std::vector<std::pair<std::string, Value>> members() const {
        std::vector<std::pair<std::string, Value>> out;
        expect(none() || json_.is_object(), "an object");
        if (json_.is_object()) {
            for (const auto& [key, value] : json_.items())
                out.emplace_back(key, Value(value, label_, fmt::format("{}.{}", path_, key)));
        }
        return out;
    }
    // null is an empty text.
    std::string text() const {
        expect(none() || json_.is_string(), "a text");
        return text_of(json_);
    }
    bool boolean() const {
        expect(json_.is_boolean(), "true or false");
        return json_.get<bool>();
    }
    std::optional<double> number_or_none() const {
        expect(none() || json_.is_number(), "a number or null");
        return number_of(json_);
    }
    // null is NaN, because JSON cannot store numbers that are not finite.
    double number() const { return number_or_none().value_or(std::nan("")); }
    double real() const {
        expect(json_.is_number(), "a number");
        return json_.get<double>();
    }
    std::optional<uint64_t> count_or_none() const {
        const auto out = count_of(json_);
        expect(none() || out, "a number that is not negative");
        return out;
    }
    size_t count() const {
        const auto out = count_of(json_);
        expect(out.has_value(), "a number that is not negative");
        return *out;
    }
    size_t count_up_to(uint64_t most) const {
        const auto out = count_of(json_);
        expect(out && *out <= most, fmt::format("a number from 0 to {}", most));
        return static_cast<size_t>(*out);
    }
    // An index below `n`.
    size_t index_below(size_t n) const {
        expect(n > 0, "null, as there is none that it could be");
        return count_up_to(n - 1);
    }
    std::vector<std::string> texts() const {
        std::vector<std::string> out;
        for (const Value& value : list()) out.push_back(value.text());
        return out;
    }

private:
    const json& json_;
    const std::string& label_;
    std::string path_;
};

FileHashes named_hashes(const Value& at) {
    FileHashes out;
    for (const auto& [file, hash] : at.members()) out[file] = hash.text();
    return out;
}

FileHashes hashes(const Value& at, const std::string& file) {
    if (!at.raw().is_string()) return named_hashes(at);
    if (at.text().empty()) return {};
    return {{file, at.text()}};
}

PerplexityFigure perplexity(const Value& at) {
    return {at["perplexity"].number_or_none().value_or(std::numeric_limits<double>::infinity()),
            at["standard_error"].number_or_none(),
            static_cast<int64_t>(at["tokens_scored"].count_or_none().value_or(0)), at["protocol"].text(),
            at["metric"].text()};
}

TaskFigure task(const Value& at) {
    return {at["task"].text(),     at["metric"].text(),
            at["value"].number(),  at["standard_error"].number_or_none(),
            at["protocol"].text(), at["higher_is_better"].boolean()};
}

std::optional<SpeedFigure> speed(const Value& at) {
    if (at.none()) return std::nullopt;
    return SpeedFigure{at["tokens_per_s"].number(), at["baseline_tokens_per_s"].number_or_none(),
                       at["ratio"].number_or_none(), at["baseline"].text()};
}

Slot slot(const Value& at) {
    const auto out = matrix_of(at.raw());
    at.expect(out.has_value(), "the name of a weight matrix");
    return *out;
}

std::vector<Slot> slots(const Value& at) {
    std::vector<Slot> out;
    for (const Value& name : at.list()) {
        out.push_back(slot(name));
        name.expect(std::count(out.begin(), out.end(), out.back()) == 1, "each weight matrix once");
    }
    return out;
}

class TopologyReader {
public:
    explicit TopologyReader(const Value& at) : at_(at) {}

    TopologyMap read() {
        map_.slots = slots(at_["slots"]);
        map_.loops = static_cast<int64_t>(at_["loops"].count_up_to(kMostCells));
        cells();
        for (const Value& entry : at_["borrowed"].list()) borrow(entry);
        count_borrowers(map_);
        map_.factors.assign(map_.rows.size(), std::vector<SlotFactors>(map_.slots.size()));
        for (const Value& entry : at_["factors"].list())
            map_.factors[layer(entry["layer"])][column(entry["slot"])] = {entry["instead"].boolean(),
                                                                          entry["text"].text()};
        map_.sources.resize(map_.rows.size());
        for (const Value& entry : at_["attention_sources"].list()) {
            AttentionSource& source = map_.sources[layer(entry["layer"])];
            source.probabilities = earlier(entry, "probabilities");
            source.kv = earlier(entry, "keys_and_values");
        }
        return std::move(map_);
    }

private:
    size_t layer(const Value& at) const { return at.index_below(map_.rows.size()); }
    size_t column(const Value& at) const {
        const auto found = std::find(map_.slots.begin(), map_.slots.end(), slot(at));
        at.expect(found != map_.slots.end(), "one of 'slots'");
        return static_cast<size_t>(found - map_.slots.begin());
    }
    std::optional<size_t> earlier(const Value& entry, const char* key) const {
        if (entry[key].none()) return std::nullopt;
        return entry[key].index_below(layer(entry["layer"]));
    }

    // Reads all cells as unshared.
    void cells() {
        uint64_t all = 0;
        for (const Value& row : at_["cells"].list()) {
            const std::vector<Value> counts = row.list();
            row.expect(counts.size() == map_.slots.size(),
                       fmt::format("a number for each of the {} slots", map_.slots.size()));
            const size_t p = map_.rows.size();
            auto& out = map_.rows.emplace_back(counts.size());
            for (size_t s = 0; s < counts.size(); ++s) {
                const bool heads = consists_of_blocks(map_.slots[s]);
                const size_t n = counts[s].count_up_to(heads ? kMostHeads : 1);
                counts[s].expect((all += n) <= kMostCells, "fewer heads in all");
                for (size_t c = 0; c < n; ++c) out[s].push_back({p, heads ? static_cast<int64_t>(c) : -1, 0});
            }
        }
    }

    void borrow(const Value& entry) {
        auto& cells = map_.rows[layer(entry["layer"])][column(entry["slot"])];
        TopologyCell& cell = cells[entry["head"].index_below(cells.size())];
        cell.layer = layer(entry["from_layer"]);
        const Value head = entry["from_head"];
        cell.head = head.none() ? -1 : static_cast<int64_t>(head.index_below(kMostHeads));
    }

    const Value& at_;
    TopologyMap map_;
};

Reconstruction reconstruction(const Value& at) {
    Reconstruction out;
    out.slots = slots(at["slots"]);
    for (const Value& row : at["relative_errors"].list()) {
        auto& errors = out.errors.emplace_back();
        for (const Value& error : row.list()) errors.push_back(error.number());
        row.expect(errors.size() == out.slots.size(),
                   fmt::format("a number for each of the {} slots", out.slots.size()));
    }
    out.total = at["total"].number();
    out.compared = at["compared"].count_up_to(kMostCells);
    out.different = at["different"].count_up_to(out.compared);
    out.missing = at["not_comparable"].count_up_to(kMostCells);
    return out;
}

TrainingRun training_run(const Value& at) {
    TrainingRun run{at["name"].text(), {}};
    for (const auto& [name, curve] : at["curves"].members()) {
        auto& [own, steps, values] = run.curves.emplace_back();
        own = name;
        for (const Value& step : curve["steps"].list()) steps.push_back(step.real());
        for (const Value& value : curve["values"].list()) values.push_back(value.number());
        curve["values"].expect(values.size() == steps.size() && !steps.empty(), "as many values as steps");
    }
    return run;
}

Variant variant(const Value& at) {
    Variant v;
    v.name = at["name"].text();
    at["name"].expect(!v.name.empty(), "the name of a model");
    v.recipe = at["recipe"].text();
    v.file = at["file"].text();
    v.hashes = hashes(at["sha256"], v.file);
    for (const Value& origin : at["made_of"].list()) v.origins.push_back(named_hashes(origin));
    v.parameters = at["parameters"].count_or_none();
    v.beyond_equal_size = at["beyond_equal_size"].number_or_none();
    v.file_bytes = at["file_bytes"].count_or_none();
    v.kv_bytes_per_token = at["kv_bytes_per_token"].count_or_none();
    v.resident_weight_bytes = at["resident_weight_bytes"].count_or_none();
    v.resident_set_bytes = at["resident_set_bytes"].count_or_none();
    for (const Value& p : at["perplexities"].list()) v.perplexities.push_back(perplexity(p));
    for (const Value& t : at["tasks"].list()) v.tasks.push_back(task(t));
    v.prefill = speed(at["prefill"]);
    v.decode = speed(at["decode"]);
    if (const Value sample = at["sample"]; !sample.none()) {
        v.prompt = sample["prompt"].text();
        v.generated = sample["generated"].text();
    }
    v.steps = at["steps"].texts();
    for (const Value& run : at["training"].list()) v.training.push_back(training_run(run));
    if (const Value map = at["topology"]; !map.none()) v.topology = TopologyReader(map).read();
    if (const Value errors = at["reconstruction"]; !errors.none()) v.reconstruction = reconstruction(errors);
    for (const Value& svd : at["svd_errors"].list())
        v.svd_errors.push_back({svd["layer"].count(), slot(svd["slot"]),
                                static_cast<int64_t>(svd["rank"].count()), svd["relative_error"].real()});
    for (const Value& analysis : at["analyses"].list()) {
        analysis.expect(analysis.raw().is_object(), "an object");
        v.analyses.push_back(analysis.raw().dump());
    }
    return v;
}

}  // namespace

bool is_saved_report(const json& root) { return root.is_object() && root.contains(kReportLayout); }

RunResult parse_report(const json& root, const std::string& label) {
    const Value at(root, label, "");
    if (root.at(kReportLayout) != kLayout)
        fail(ErrorCode::input, "report",
             "{}: got layout {} of reports, expected {} - another version of refold wrote it, make it again",
             label, shorten(root.at(kReportLayout).dump(), 40), kLayout);
    RunResult out;
    out.label = label;
    out.version = at["refold_version"].text();
    out.commands = at["commands"].texts();
    out.notes = at["notes"].texts();
    if (const Value machine = at["machine"]; !machine.none())
        out.machine = {machine["cpu"].text(), static_cast<int>(machine["threads"].count_up_to(kMostThreads)),
                       machine["memory_bytes"].count_or_none().value_or(0)};
    for (const Value& entry : at["variants"].list()) out.before.push_back(variant(entry));
    at["variants"].expect(!out.before.empty(), "at least one model");
    out.variant = std::move(out.before.back());
    out.before.pop_back();
    return out;
}

}  // namespace refold
