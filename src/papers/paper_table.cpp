#include "papers/paper_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "core/data_files.h"
#include "core/error.h"
#include "core/text.h"
#include "io/yaml.h"
#include "papers/planned_number.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

class Reader {
public:
    explicit Reader(const std::string& path) : file_("paper", path) { table_.path = path; }

    PaperTable read() {
        const YAML::Node root = parse_yaml(read_text_file(file_.label()), "paper", file_.label());
        table_.paper = fs::absolute(table_.path).parent_path().filename().string();
        YAML::Node rows;
        file_.read_map(
            root, "a table",
            {{"place", text(table_.place)},
             {"section", text(table_.section)},
             {"title", text(table_.title)},
             {"needs", text(table_.needs)},
             {"why", text(table_.why)},
             {"notes", [this](const YAML::Node& node) { table_.notes = file_.scalars(node, "notes"); }},
             {"columns", [this](const YAML::Node& node) { read_columns(node); }},
             {"rows", [&](const YAML::Node& node) { rows.reset(node); }}});
        if (table_.place.empty() || table_.title.empty())
            fail(ErrorCode::input, "paper", "{}: a table needs the keys 'place' and 'title'", file_.label());
        if (rows.IsSequence()) {
            for (const auto& row : rows) read_row(row);
        } else if (!rows.IsNull()) {
            fail(ErrorCode::input, "paper", "{}: 'rows' needs a list", file_.at(rows));
        }
        const bool empty = table_.columns.empty() || table_.rows.empty();
        if (empty == table_.why.empty())
            fail(ErrorCode::input, "paper",
                 "{}: give columns and rows, or 'why', the reason why there is nothing to measure",
                 file_.label());
        return std::move(table_);
    }

private:
    using Handler = std::function<void(const YAML::Node&)>;
    // A handler that keeps a single value; `key` is only known to the error of YamlFile.
    Handler text(std::string& to) const {
        return [this, &to](const YAML::Node& node) { to = file_.scalar(node, "value"); };
    }
    Handler number(double& to, double least) const {
        return [this, &to, least](const YAML::Node& node) {
            if (!YAML::convert<double>::decode(node, to) || !std::isfinite(to) || to <= least)
                fail(ErrorCode::input, "paper", "{}: expected a number above {}", file_.at(node), least);
        };
    }
    Handler scale(double& to) const {
        return [this, &to](const YAML::Node& node) {
            if (!YAML::convert<double>::decode(node, to) || !std::isfinite(to) || to == 0)
                fail(ErrorCode::input, "paper", "{}: 'scale' must be a number other than 0", file_.at(node));
        };
    }

    void read_columns(const YAML::Node& node) {
        file_.check_map(node, "'columns'");
        for (const auto& entry : node) {
            PaperColumn c;
            c.name = entry.first.Scalar();
            std::string measure, command;
            double shots = -1;
            file_.read_map(entry.second, "a column",
                           {{"measure", text(measure)},
                            {"why", text(c.why)},
                            {"text", text(c.text)},
                            {"task", text(c.task)},
                            {"metric", text(c.metric)},
                            {"shots", number(shots, -1)},
                            {"command", text(command)},
                            {"value", text(c.value)},
                            {"scale", scale(c.scale)},
                            {"of", [&](const YAML::Node& n) { c.of = file_.scalars(n, "of"); }}});
            if (shots >= 0) c.shots = static_cast<int64_t>(shots);
            for (std::istringstream words(command); words >> command;) c.words.push_back(command);
            set_measure(entry.first, measure, c);
            table_.columns.push_back(std::move(c));
        }
    }

    void set_measure(const YAML::Node& node, const std::string& name, PaperColumn& c) const {
        const auto needs = [&](bool there, const char* keys) {
            if (!there)
                fail(ErrorCode::input, "paper", "{}: column '{}' needs {}", file_.at(node), c.name, keys);
        };
        if (name.empty()) return needs(!c.why.empty(), "'measure', or 'why', the reason why it has none");
        if (name == "perplexity" || name == "loss") {
            c.measure = name == "loss" ? PaperMeasure::loss : PaperMeasure::perplexity;
            return needs(!c.text.empty(), "'text'");
        }
        if (name == "task") {
            c.measure = PaperMeasure::task;
            return needs(!c.task.empty() && !c.metric.empty(), "'task' and 'metric'");
        }
        if (name == "command") {
            c.measure = PaperMeasure::command;
            return needs(!c.words.empty() && c.value.starts_with("/"),
                         "'command' and 'value', a JSON pointer such as /decode/tokens_per_s");
        }
        if (name == "mean") {
            c.measure = PaperMeasure::mean;
            needs(!c.of.empty(), "'of', a list of columns");
            for (const std::string& other : c.of) {
                if (std::ranges::none_of(table_.columns,
                                         [&](const auto& column) { return column.name == other; }))
                    fail(ErrorCode::input, "paper", "{}: there is no column '{}' before '{}'", file_.at(node),
                         other, c.name);
            }
            return;
        }
        const auto known = planned_numbers();
        if (std::ranges::find(known, name) == known.end()) {
            std::vector<std::string> all = known;
            all.insert(all.end(), {"perplexity", "loss", "task", "mean", "command"});
            fail(ErrorCode::usage, "paper", "{}: unknown measure '{}'; {}", file_.at(node), name,
                 suggestion(name, all));
        }
        c.measure = PaperMeasure::planned;
        c.number = name;
    }

    void read_row(const YAML::Node& node) {
        PaperRow row;
        double kept = 0;
        file_.read_map(node, "a row",
                       {{"name", text(row.name)},
                        {"model", text(row.model)},
                        {"recipe", [&](const YAML::Node& n) { row.recipe = recipe_file(n); }},
                        {"steps", [&](const YAML::Node& n) { row.recipe = steps(n); }},
                        {"for", [&](const YAML::Node& n) { read_recipes(n, row); }},
                        {"kept", number(kept, 0)},
                        {"kv_budget", number(row.kv_budget, 0)},
                        {"options", [&](const YAML::Node& n) { row.options = file_.scalars(n, "options"); }},
                        {"why", text(row.why)},
                        {"published", [&](const YAML::Node& n) { row.published = published(n); }},
                        {"misprints", [&](const YAML::Node& n) { read_misprints(n, row); }}});
        if (row.name.empty() || row.model.empty())
            fail(ErrorCode::input, "paper", "{}: a row needs the keys 'name' and 'model'", file_.at(node));
        if (node["recipe"] && node["steps"])
            fail(ErrorCode::input, "paper", "{}: give 'recipe' or 'steps', not both", file_.at(node));
        row.kept = static_cast<int64_t>(kept);
        if (row.kept > 0) {
            check_kept(node, row, row.recipe);
            for (const auto& [model, recipe] : row.recipes) check_kept(node, row, recipe);
        }
        if (row.published.empty()) row.published.resize(table_.columns.size());
        if (row.published.size() != table_.columns.size())
            fail(ErrorCode::input, "paper", "{}: row '{}' has {} published numbers for {} columns",
                 file_.at(node), row.name, row.published.size(), table_.columns.size());
        for (const PaperRow& other : table_.rows)
            if (other.name == row.name)
                fail(ErrorCode::input, "paper", "{}: there is a row '{}' already", file_.at(node), row.name);
        table_.rows.push_back(std::move(row));
    }

    void check_kept(const YAML::Node& node, const PaperRow& row, const std::optional<Recipe>& recipe) const {
        const size_t step = recipe ? keeping_step(*recipe) : 0;
        if (step == 0 || recipe->steps[step - 1].options.integer("keep") < row.kept)
            fail(ErrorCode::input, "paper",
                 "{}: 'kept' is {}, and no step of the recipe keeps so many models", file_.at(node),
                 row.kept);
    }

    // Beside the file: ../../recipes/NAME.yaml.
    Recipe recipe_file(const YAML::Node& node) const {
        const std::string name = file_.scalar(node, "recipe");
        return read_recipe((fs::path(table_.path).parent_path() / name).string());
    }
    Recipe steps(const YAML::Node& node) const {
        YAML::Node recipe;
        recipe["steps"] = node;
        return parse_recipe(YAML::Dump(recipe), file_.at(node));
    }
    void read_recipes(const YAML::Node& node, PaperRow& row) const {
        file_.check_map(node, "'for'");
        for (const auto& entry : node) {
            const std::string model = entry.first.Scalar();
            row.recipes.insert_or_assign(
                model, entry.second.IsSequence() ? steps(entry.second) : recipe_file(entry.second));
        }
    }
    std::vector<std::string> published(const YAML::Node& node) const {
        auto numbers = file_.scalars(node, "published");
        for (size_t i = 0; i < numbers.size(); ++i) {
            double value = 0;
            if (!numbers[i].empty() && !YAML::convert<double>::decode(YAML::Node(numbers[i]), value))
                fail(ErrorCode::input, "paper", "{}: '{}' is not a number (\"\" where the paper has none)",
                     file_.at(node[i]), numbers[i]);
        }
        return numbers;
    }
    void read_misprints(const YAML::Node& node, PaperRow& row) const {
        file_.check_map(node, "'misprints'");
        for (const auto& entry : node) {
            const std::string column = entry.first.Scalar();
            if (std::ranges::none_of(table_.columns, [&](const auto& c) { return c.name == column; }))
                fail(ErrorCode::input, "paper", "{}: there is no column '{}'", file_.at(entry.first), column);
            row.misprints[column] = file_.scalar(entry.second, column);
        }
    }

    YamlFile file_;
    PaperTable table_;
};

bool any_recipe(const PaperTable& table, bool (*wanted)(const Recipe&)) {
    return std::ranges::any_of(table.rows,
                               [&](const PaperRow& row) { return row.recipe && wanted(*row.recipe); });
}

// "table-2.yaml" as a key that sorts before that of "table-10.yaml".
std::string ordered(const std::string& path) {
    const std::string name = fs::path(path).stem().string();
    const size_t dash = name.find_last_of('-');
    const std::string number = dash == std::string::npos ? "" : name.substr(dash + 1);
    return fs::path(path).parent_path().string() + "/" + name.substr(0, dash) +
           std::string(number.size() < 8 ? 8 - number.size() : 0, '0') + number;
}

}  // namespace

const std::optional<Recipe>& PaperRow::recipe_for(const std::string& other_model) const {
    const auto own = recipes.find(other_model);
    return own == recipes.end() ? recipe : own->second;
}

bool needs_training_text(const Recipe& recipe) {
    return std::ranges::any_of(recipe.steps, [](const RecipeStep& step) {
        // objective=layerwise trains on the calibration text.
        const bool calibrated = step.method->calibrated != nullptr && step.method->calibrated(step.options);
        return std::string_view(step.method->name) == "train" && !calibrated &&
               step.options.text("data").empty();
    });
}

size_t keeping_step(const Recipe& recipe) {
    for (size_t s = 0; s < recipe.steps.size(); ++s) {
        const RecipeStep& step = recipe.steps[s];
        if (std::string_view(step.method->name) == "train" && step.options.integer("keep") > 0) return s + 1;
    }
    return 0;
}

bool PaperTable::planned() const {
    return why.empty() && std::ranges::all_of(columns, [](const PaperColumn& c) {
               return c.measure == PaperMeasure::planned;
           });
}

std::vector<std::string> PaperTable::models() const {
    std::vector<std::string> out;
    for (const PaperRow& row : rows)
        if (std::ranges::find(out, row.model) == out.end()) out.push_back(row.model);
    return out;
}

bool PaperTable::trains() const { return any_recipe(*this, needs_training_text); }

bool PaperTable::calibrates() const {
    return any_recipe(*this, [](const Recipe& recipe) { return first_calibrated(recipe) != nullptr; });
}

PaperTable read_paper_table(const std::string& path) { return Reader(data_file(path)).read(); }

std::vector<PaperTable> read_paper_tables(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code none;
    for (const auto& entry : fs::recursive_directory_iterator(data_file(folder), none))
        if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
    if (paths.empty())
        fail(ErrorCode::input, "paper", "'{}': there are no tables (*.yaml) in this folder", folder);
    std::ranges::sort(paths, {}, ordered);
    std::vector<PaperTable> tables;
    for (const std::string& path : paths) tables.push_back(read_paper_table(path));
    return tables;
}

std::string paper_model_config(const PaperTable& table, const std::string& model) {
    return (fs::absolute(table.path).parent_path().parent_path() / "models" / (model + ".json")).string();
}

}  // namespace refold
