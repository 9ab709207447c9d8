#include "compress/recipe.h"

#include <set>

#include "compress/registry.h"
#include "core/error.h"
#include "core/text.h"
#include "io/yaml.h"

namespace refold {
namespace {

class Reader {
public:
    explicit Reader(std::string label) : label_(std::move(label)) {}

    Recipe read(const std::string& text) const {
        const YAML::Node root = parse_yaml(text, "recipe", label_);
        if (!root.IsMap()) {
            fail(ErrorCode::input, "recipe", "{}: expected a mapping with the key 'steps'{}", label_,
                 root.IsNull() ? ", the file is empty" : "");
        }
        static const std::vector<std::string> kKeys = {"model", "original", "calibration", "steps"};
        check_unique(root);
        Recipe recipe;
        YAML::Node steps(YAML::NodeType::Undefined);
        for (const auto& entry : root) {
            const std::string key = entry.first.Scalar();
            if (key == "model" || key == "original") {
                std::string& name = key == "model" ? recipe.model : recipe.original;
                name = scalar(entry.second, key);
                if (name.empty()) fail(ErrorCode::input, "recipe", "{}: '{}' is empty", at(entry.first), key);
            } else if (key == "calibration") {
                read_calibration(entry.second, recipe);
            } else if (key == "steps") {
                steps.reset(entry.second);
            } else {
                fail(ErrorCode::usage, "recipe", "{}: unknown key '{}'; {}", at(entry.first), key,
                     suggestion(key, kKeys));
            }
        }
        if (!steps.IsDefined()) fail(ErrorCode::input, "recipe", "{}: the key 'steps' is missing", label_);
        if (!steps.IsSequence() || steps.size() == 0) {
            fail(ErrorCode::input, "recipe", "{}: 'steps' must be a list of at least one method", at(steps));
        }
        for (const auto& step : steps) recipe.steps.push_back(read_step(step));
        // Ignoring the key would mislead.
        if (!recipe.calibration_texts.empty() && first_calibrated(recipe) == nullptr)
            fail(ErrorCode::usage, "recipe", "{}: no step of this recipe uses 'calibration' - remove it",
                 label_);
        return recipe;
    }

private:
    void read_calibration(const YAML::Node& node, Recipe& recipe) const {
        if (!node.IsMap()) fail(ErrorCode::input, "recipe", "{}: 'calibration' must be a mapping", at(node));
        static const std::vector<std::string> kKeys = {"text", "tokens", "length"};
        check_unique(node);
        for (const auto& entry : node) {
            const std::string key = entry.first.Scalar();
            if (key == "text" && entry.second.IsSequence()) {
                for (const auto& text : entry.second) recipe.calibration_texts.push_back(scalar(text, key));
                continue;
            }
            const std::string value = scalar(entry.second, key);
            if (key == "text") {
                recipe.calibration_texts = {value};
            } else if (key == "tokens" || key == "length") {
                int64_t& number = key == "tokens" ? recipe.calibration.tokens : recipe.calibration.length;
                if (!YAML::convert<int64_t>::decode(entry.second, number) || number < 1)
                    fail(ErrorCode::usage, "recipe", "{}: '{}' must be a number of tokens, got '{}'",
                         at(entry.second), key, value);
            } else {
                fail(ErrorCode::usage, "recipe", "{}: unknown key '{}'; {}", at(entry.first), key,
                     suggestion(key, kKeys));
            }
        }
        if (recipe.calibration_texts.empty())
            fail(ErrorCode::input, "recipe", "{}: 'calibration' needs the key 'text'", at(node));
    }

    RecipeStep read_step(const YAML::Node& node) const {
        if (!node.IsMap()) {
            fail(ErrorCode::input, "recipe", "{}: a step must be a mapping with the key 'method'", at(node));
        }
        check_unique(node);
        const Method* method = nullptr;
        std::vector<GivenOption> given;
        for (const auto& entry : node) {
            const std::string key = entry.first.Scalar();
            const std::string value = scalar(entry.second, key);
            if (key == "method") {
                method = &find_method(value, at(entry.first));
            } else {
                given.push_back({key, value, at(entry.first)});
            }
        }
        if (method == nullptr)
            fail(ErrorCode::input, "recipe", "{}: a step needs the key 'method'", at(node));
        return {method, Options(*method, given)};
    }

    // yaml-cpp silently keeps both of two equal keys.
    void check_unique(const YAML::Node& map) const {
        std::set<std::string> seen;
        for (const auto& entry : map) {
            if (!entry.first.IsScalar())
                fail(ErrorCode::input, "recipe", "{}: a key must be a word", at(entry.first));
            if (!seen.insert(entry.first.Scalar()).second) {
                fail(ErrorCode::input, "recipe", "{}: key '{}' is given twice", at(entry.first),
                     entry.first.Scalar());
            }
        }
    }

    std::string scalar(const YAML::Node& node, const std::string& key) const {
        if (!node.IsScalar())
            fail(ErrorCode::input, "recipe", "{}: '{}' needs a single value", at(node), key);
        return node.Scalar();
    }

    std::string at(const YAML::Node& node) const {
        return fmt::format("{} line {}", label_, node.Mark().line + 1);
    }

    std::string label_;
};

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& label) { return Reader(label).read(text); }

Recipe read_recipe(const std::string& path) { return parse_recipe(read_text_file(path), path); }

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
