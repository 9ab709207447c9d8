#include "compress/recipe.h"

#include "compress/registry.h"
#include "core/data_files.h"
#include "core/error.h"
#include "core/text.h"
#include "io/yaml.h"

namespace refold {
namespace {

class Reader {
public:
    explicit Reader(std::string label) : file_("recipe", std::move(label)) {}

    Recipe read(const std::string& text) const {
        const YAML::Node root = parse_yaml(text, "recipe", file_.label());
        if (!root.IsMap()) {
            fail(ErrorCode::input, "recipe", "{}: expected a mapping with the key 'steps'{}", file_.label(),
                 root.IsNull() ? ", the file is empty" : "");
        }
        if (root["slices"]) return read_slices(root);
        Recipe recipe;
        YAML::Node steps(YAML::NodeType::Undefined);
        const auto name = [&](const char* key, std::string& to) {
            return [this, key, &to](const YAML::Node& node) {
                to = file_.scalar(node, key);
                if (to.empty()) fail(ErrorCode::input, "recipe", "{}: '{}' is empty", file_.at(node), key);
            };
        };
        file_.read_map(root, "a recipe",
                       {{"model", name("model", recipe.model)},
                        {"original", name("original", recipe.original)},
                        {"calibration", [&](const YAML::Node& node) { read_calibration(node, recipe); }},
                        {"steps", [&](const YAML::Node& node) { steps.reset(node); }}});
        if (!steps.IsDefined())
            fail(ErrorCode::input, "recipe", "{}: the key 'steps' is missing", file_.label());
        if (!steps.IsSequence() || steps.size() == 0) {
            fail(ErrorCode::input, "recipe", "{}: 'steps' must be a list of at least one method",
                 file_.at(steps));
        }
        for (const auto& step : steps) recipe.steps.push_back(read_step(step));
        // Ignoring the key would mislead.
        if (!recipe.calibration_texts.empty() && first_calibrated(recipe) == nullptr)
            fail(ErrorCode::usage, "recipe", "{}: no step of this recipe uses 'calibration' - remove it",
                 file_.label());
        return recipe;
    }

private:
    void read_calibration(const YAML::Node& node, Recipe& recipe) const {
        const auto tokens = [&](const char* key, int64_t& to) {
            return [this, key, &to](const YAML::Node& value) {
                if (!YAML::convert<int64_t>::decode(value, to) || to < 1)
                    fail(ErrorCode::usage, "recipe", "{}: '{}' must be a number of tokens, got '{}'",
                         file_.at(value), key, file_.scalar(value, key));
            };
        };
        const auto texts = [&](const YAML::Node& value) {
            recipe.calibration_texts =
                value.IsSequence() ? file_.scalars(value, "text") : std::vector{file_.scalar(value, "text")};
        };
        file_.read_map(node, "'calibration'",
                       {{"text", texts},
                        {"tokens", tokens("tokens", recipe.calibration.tokens)},
                        {"length", tokens("length", recipe.calibration.length)}});
        if (recipe.calibration_texts.empty())
            fail(ErrorCode::input, "recipe", "{}: 'calibration' needs the key 'text'", file_.at(node));
    }

    // mergekit's configuration of a passthrough merge of one model with itself: the step `repeat`.
    Recipe read_slices(const YAML::Node& root) const {
        Recipe recipe;
        std::string layers, kind;
        const auto read_source = [&](const YAML::Node& node) {
            std::string model;
            std::vector<std::string> range;
            file_.read_map(node, "a source of a slice",
                           {{"model", [&](const YAML::Node& value) { model = file_.scalar(value, "model"); }},
                            {"layer_range",
                             [&](const YAML::Node& value) { range = file_.scalars(value, "layer_range"); }}});
            int64_t first = 0, end = 0;
            if (range.size() != 2 || !YAML::convert<int64_t>::decode(node["layer_range"][0], first) ||
                !YAML::convert<int64_t>::decode(node["layer_range"][1], end) || first < 0 || end <= first)
                fail(ErrorCode::input, "recipe", "{}: 'layer_range' must be [first, end], got [{}]",
                     file_.at(node), fmt::join(range, ", "));
            if (!recipe.model.empty() && model != recipe.model)
                fail(ErrorCode::unsupported, "recipe",
                     "{}: slices of '{}' and '{}': only a merge of one model with itself needs no training",
                     file_.at(node), recipe.model, model);
            recipe.model = model;
            layers += fmt::format("{}{}-{}", layers.empty() ? "" : ",", first, end - 1);
        };
        const auto read_slice = [&](const YAML::Node& slice) {
            file_.read_map(slice, "a slice",
                           {{"sources", [&](const YAML::Node& sources) {
                                 if (!sources.IsSequence() || sources.size() != 1)
                                     fail(ErrorCode::unsupported, "recipe",
                                          "{}: a slice of a passthrough merge has one source",
                                          file_.at(sources));
                                 read_source(sources[0]);
                             }}});
        };
        file_.read_map(
            root, "a merge",
            {{"slices",
              [&](const YAML::Node& slices) {
                  if (!slices.IsSequence() || slices.size() == 0)
                      fail(ErrorCode::input, "recipe", "{}: 'slices' must be a list", file_.at(slices));
                  for (const auto& slice : slices) read_slice(slice);
              }},
             {"merge_method", [&](const YAML::Node& value) { kind = file_.scalar(value, "merge_method"); }},
             {"dtype", [](const YAML::Node&) {}}});  // weights keep their type
        if (kind != "passthrough")
            fail(ErrorCode::unsupported, "recipe",
                 "{}: merge_method '{}' is not supported; known: passthrough", file_.label(), kind);
        const Method& repeat = find_method("repeat", file_.label());
        const std::vector<GivenOption> given = {{"layers", layers, file_.label()}};
        recipe.steps.push_back({&repeat, Options(repeat, given)});
        return recipe;
    }

    RecipeStep read_step(const YAML::Node& node) const {
        if (!node.IsMap()) {
            fail(ErrorCode::input, "recipe", "{}: a step must be a mapping with the key 'method'",
                 file_.at(node));
        }
        file_.check_map(node, "a step");
        const Method* method = nullptr;
        std::vector<GivenOption> given;
        for (const auto& entry : node) {
            const std::string key = entry.first.Scalar();
            const std::string value = file_.scalar(entry.second, key);
            if (key == "method") {
                method = &find_method(value, file_.at(entry.first));
            } else {
                given.push_back({key, value, file_.at(entry.first)});
            }
        }
        if (method == nullptr)
            fail(ErrorCode::input, "recipe", "{}: a step needs the key 'method'", file_.at(node));
        return {method, Options(*method, given)};
    }

    YamlFile file_;
};

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& label) { return Reader(label).read(text); }

Recipe read_recipe(const std::string& path) { return parse_recipe(read_text_file(data_file(path)), path); }

Recipe recipe_from_method(const std::string& method, std::span<const std::string> settings) {
    const Method& found = find_method(method, "--method");
    std::vector<GivenOption> given;
    for (const auto& setting : settings) {
        const size_t equals = setting.find('=');
        if (equals == std::string::npos || equals == 0) {
            fail(ErrorCode::usage, "recipe", "--set: got '{}', expected option=value", setting);
        }
        given.push_back({setting.substr(0, equals), setting.substr(equals + 1), "--set"});
    }
    Recipe recipe;
    recipe.steps.push_back({&found, Options(found, given)});
    return recipe;
}

Recipe first_steps(const Recipe& recipe, size_t count) {
    Recipe out = recipe;
    out.steps.erase(out.steps.begin() + static_cast<ptrdiff_t>(count), out.steps.end());
    return out;
}

const Method* first_calibrated(const Recipe& recipe) {
    for (const auto& step : recipe.steps) {
        if (step.method->calibrated != nullptr && step.method->calibrated(step.options)) return step.method;
    }
    return nullptr;
}

std::string to_yaml(const Recipe& recipe) {
    YAML::Emitter out;
    out << YAML::BeginMap;
    if (!recipe.model.empty()) out << YAML::Key << "model" << YAML::Value << recipe.model;
    if (!recipe.original.empty()) out << YAML::Key << "original" << YAML::Value << recipe.original;
    if (const auto& texts = recipe.calibration_texts; !texts.empty()) {
        out << YAML::Key << "calibration" << YAML::Value << YAML::BeginMap;
        out << YAML::Key << "text" << YAML::Value;
        texts.size() == 1 ? out << texts[0] : out << texts;
        out << YAML::Key << "tokens" << YAML::Value << recipe.calibration.tokens;
        out << YAML::Key << "length" << YAML::Value << recipe.calibration.length << YAML::EndMap;
    }
    out << YAML::Key << "steps" << YAML::Value << YAML::BeginSeq;
    for (const auto& step : recipe.steps) {
        out << YAML::BeginMap << YAML::Key << "method" << YAML::Value << step.method->name;
        for (const auto& [name, value] : step.options.entries())
            out << YAML::Key << name << YAML::Value << value;
        out << YAML::EndMap;
    }
    out << YAML::EndSeq << YAML::EndMap;
    return std::string(out.c_str()) + "\n";
}

}  // namespace refold
