// Checkpoints whose config.json or tensors differ in one thing from a fixture: what refold computes is what
// transformers computes, or it refuses. The changes and transformers' answers are in
// tests/fixtures/changed_configs, see tests/tools/make_changed_config_fixtures.py.
//
// Most changes are left out, unless REFOLD_ALL_CHANGES is set (scripts/check-changed-configs).
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <sstream>

#include "core/error.h"
#include "engine/changed_configs/changed_checkpoint.h"
#include "engine/compare.h"
#include "model/load.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kTolerance = 1e-4;
const fs::path kFolder = fs::path(REFOLD_FIXTURES) / "changed_configs";

std::vector<std::string> fixtures() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kFolder)) {
        if (entry.path().extension() == ".jsonl") names.push_back(entry.path().stem());
    }
    std::sort(names.begin(), names.end());
    return names;
}

// Where refold does otherwise than transformers on purpose: patterns of fixture and change, and why.
class Allowed {
public:
    // `way`: "refuses" what transformers computes, or "computes" what transformers fails on.
    static bool has(const std::string& way, const std::string& fixture, const std::string& change) {
        static const std::vector<Allowed> list = read();
        return std::ranges::any_of(list, [&](const Allowed& entry) {
            return entry.way_ == way && std::regex_match(fixture, entry.fixture_) &&
                   std::regex_match(change, entry.change_);
        });
    }

private:
    static std::vector<Allowed> read() {
        std::vector<Allowed> out;
        std::istringstream lines(read_text_file(kFolder / "allowed.tsv"));
        for (std::string line; std::getline(lines, line);) {
            if (line.empty() || line.front() == '#') continue;
            std::vector<std::string> parts;
            std::istringstream columns(line);
            for (std::string part; std::getline(columns, part, '\t');) parts.push_back(part);
            if (parts.size() != 4) throw std::runtime_error("allowed.tsv: " + line);
            Allowed entry;
            entry.way_ = parts[0];
            entry.fixture_ = parts[1];
            entry.change_ = parts[2];
            out.push_back(entry);
        }
        return out;
    }

    std::string way_;
    std::regex fixture_, change_;
};

// What make_changed_config_fixtures.py's function of this name picks.
std::vector<float> sample(const std::vector<float>& values, size_t width) {
    const size_t count = values.size() / width;
    std::vector<float> out;
    for (const size_t row : std::set<size_t>{1 % count, count / 2, count - 1}) {
        const auto w = static_cast<int64_t>(width);
        for (const int64_t column : std::set<int64_t>{w / 3, w - 2})
            out.push_back(values[row * width + static_cast<size_t>((column + w) % w)]);
    }
    return out;
}

// Everything that logits depend on, but for the tensors that come from the checkpoint.
std::string description(const Model& model) {
    std::string out = topology_to_json(model.topology, model.implied());
    for (const auto& [key, value] : model.metadata.entries()) {
        if (key.starts_with("refold.checkpoint") || key.starts_with("general.")) continue;
        out += key + "=";
        std::visit(
            [&](const auto& v) {
                using Value = std::decay_t<decltype(v)>;
                if constexpr (std::is_same_v<Value, std::string>) {
                    out += v;
                } else if constexpr (std::is_same_v<Value, std::shared_ptr<const GgufArray>>) {
                    out.append(reinterpret_cast<const char*>(v->packed.data()), v->packed.size());
                    for (const std::string& s : v->strings) out += s + ",";
                } else {
                    out += fmt::format("{}", v);
                }
            },
            value.value);
        out += "\n";
    }
    for (const auto& [name, tensor] : model.tensors) {
        out += name + "\n";
        if (!name.starts_with("rope")) continue;
        const TensorBytes bytes(tensor);
        out.append(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size());
    }
    return out;
}

struct Outcome {
    std::vector<float> values;
    std::string refusal;  // instead of values
};

class ChangedConfigs : public testing::TestWithParam<std::string> {
protected:
    ChangedConfigs() {
        std::istringstream text(read_text_file(kFolder / (GetParam() + ".jsonl")));
        for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
        tokens = lines.front()["tokens"].get<std::vector<int32_t>>();
        base = lines.front()["answer"].get<std::vector<float>>();
        checkpoint.emplace(GetParam(), lines.front()["layers"].get<size_t>());
        const Model unchanged = load_model(checkpoint->with(Json::object()));
        base_description = description(unchanged);
    }

    std::vector<float> run(const Model& model) const {
        const EngineOptions options{.threads = 1, .context = 128, .f32 = true};
        if (model.config.causal)
            return sample(all_logits(model, tokens, options), static_cast<size_t>(model.config.n_vocab));
        SingleSequence sequence(model, of_one_sequence(options));
        const Encoding encoding = sequence.encode({tokens, {}, {}});
        if (encoding.score) return {*encoding.score, *encoding.score};
        if (!encoding.logits.empty())
            return sample(encoding.logits, static_cast<size_t>(model.config.n_vocab));
        return sample(encoding.last_hidden_state, static_cast<size_t>(model.config.n_embd));
    }

    // Whether a change is among those that are always run. Stays the same from run to run.
    bool picked(const std::string& what) const {
        uint32_t hash = 0;
        for (const char c : GetParam() + what) hash = hash * 31 + static_cast<unsigned char>(c);
        return all || hash % kEvery == 0;
    }

    Outcome outcome(const Json& change) {
        try {
            const Model model = load_model(checkpoint->with(change));
            bool same_tensors = true;
            for (const char* part : {"add", "lose", "copy", "rename", "leftover"})
                same_tensors = same_tensors && !change.contains(part);
            if (same_tensors && description(model) == base_description) return Outcome{base, ""};
            return Outcome{run(model), ""};
        } catch (const Error& error) {
            return Outcome{{}, error.what()};
        }
    }

    void check(const std::string& what, const Json& change, const Json& answer, const Json& older) {
        if (!picked(what)) return;
        const Outcome got = outcome(change);
        ++checked;
        const auto fits = [&](const Json& expected) {
            const std::vector<float> numbers =
                expected.is_array() ? expected.get<std::vector<float>>() : base;
            return (expected.is_array() || expected == "same") &&
                   largest_difference(got.values, numbers) <= kTolerance;
        };
        const bool computed = answer.is_array() || answer == "same";
        const std::string described = GetParam() + ": " + what + ": transformers: " + answer.dump() +
                                      (older.is_null() ? "" : ", older: " + older.dump()) + ", refold: ";
        if (got.refusal.empty()) {
            const bool right = computed ? fits(answer)
                                        : fits(older) || (is_harmless(change, answer) && fits("same")) ||
                                              Allowed::has("computes", GetParam(), what);
            EXPECT_TRUE(right) << described << Json(got.values) << "\n" << change;
            return;
        }
        // Where the versions compute different numbers, refusing is right.
        if (!computed || older.is_array() || older == "same" || has_foreign_field(change)) return;
        EXPECT_TRUE(Allowed::has("refuses", GetParam(), what)) << described << got.refusal << "\n" << change;
    }

    // Whether the model without the change is what such a file can only mean, where transformers has no
    // answer.
    static bool is_harmless(const Json& change, const Json& answer) {
        return answer == "fails" || change.contains("rename");
    }

    // Whether a field is new that the model's class does not have. Refold refuses those: other code may read
    // them.
    bool has_foreign_field(const Json& change) const {
        const Json set = change.value("set", Json::object());
        const auto of_class = lines.front()["fields"].get<std::set<std::string>>();
        for (const auto& item : set.items()) {
            const std::string field = item.key().substr(1, item.key().find('/', 1) - 1);
            if (!field.empty() && field != "rope_scaling" && field != "rope_parameters" &&
                !checkpoint->config().contains(field) && !of_class.contains(field))
                return true;
        }
        return false;
    }

    static constexpr uint32_t kEvery = 4;
    const bool all = std::getenv("REFOLD_ALL_CHANGES") != nullptr;
    std::vector<Json> lines;
    std::vector<int32_t> tokens;
    std::vector<float> base;
    std::string base_description;
    std::optional<ChangedCheckpoint> checkpoint;
    int checked = 0;
};
INSTANTIATE_TEST_SUITE_P(Fixtures, ChangedConfigs, testing::ValuesIn(fixtures()),
                         [](const auto& test) { return test.param; });

TEST_P(ChangedConfigs, EqualTransformersOrAreRefused) {
    EXPECT_LE(largest_difference(run(load_model(checkpoint->with(Json::object()))), base), kTolerance);
    for (size_t i = 1; i < lines.size(); ++i) {
        const Json& line = lines[i];
        const Json older = line.value("older", Json());
        if (!line.contains("each")) {
            check(line["what"], line, line["answer"], older);
            continue;
        }
        for (const Json& each : line["each"]) {
            const std::string pointer = each[0];
            if (each.size() == 1) {
                check(pointer.substr(1) + " removed", {{"drop", {pointer}}}, line["answer"], older);
            } else {
                check(pointer.substr(1) + " = " + each[1].dump(), {{"set", {{pointer, each[1]}}}},
                      line["answer"], older);
            }
        }
    }
    EXPECT_GT(checked, all ? 100 : 10);
}

}  // namespace
}  // namespace refold
