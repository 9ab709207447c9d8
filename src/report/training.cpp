#include "report/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "core/text.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// Longer curves are averaged.
constexpr size_t kMostPoints = 96;

TrainingCurve& curve_of(TrainingRun& run, const std::string& name) {
    const auto found = std::ranges::find(run.curves, name, &TrainingCurve::name);
    return found != run.curves.end() ? *found : run.curves.emplace_back(TrainingCurve{name, {}, {}});
}

void add_line(const nlohmann::ordered_json& line, const std::string& path, size_t number, TrainingRun& run) {
    const auto step = line.find("step");
    if (step == line.end() || !step->is_number())
        fail(ErrorCode::input, "report",
             "'{}', line {}: no 'step' - expected the metrics.jsonl of a training run", path, number);
    for (const auto& [name, value] : line.items()) {
        if (name == "step") continue;
        if (!value.is_number() && !value.is_null())
            fail(ErrorCode::input, "report", "'{}', line {}: '{}' is {}, expected a number", path, number,
                 name, value.type_name());
        TrainingCurve& curve = curve_of(run, name);
        curve.steps.push_back(step->get<double>());
        curve.values.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                               : value.get<double>());
    }
}

// A figure and the curves it draws.
struct FigureSpec {
    std::string title, axis, caption;
    std::vector<std::pair<std::string, std::string>> curves;  // names in the file and in the legend
    bool from_zero = false;
};

std::vector<FigureSpec> figure_specs(const Comparison& c) {
    std::vector<FigureSpec> out = {
        {"Loss",
         "loss (nats per token)",
         "Lower is better.",
         {{"loss", "loss"}, {"held_out_loss", "held-out loss"}}},
        {"Learning rate", "learning rate (no unit)", "", {{"learning_rate", "learning rate"}}},
        {"Gradient", "L2 norm, before clipping (no unit)", "", {{"gradient_norm", "gradient norm"}}},
        {"Training speed",
         "tokens per second",
         "Higher is better.",
         {{"tokens_per_s", "tokens per second"}},
         true}};
    const auto is_chosen = [&](const std::string& name) {
        return std::ranges::any_of(out, [&](const FigureSpec& figure) {
            return std::ranges::any_of(figure.curves, [&](const auto& curve) { return curve.first == name; });
        });
    };
    for (const auto& variant : c.variants) {
        for (const auto& run : variant.training) {
            for (const auto& curve : run.curves) {
                if (is_chosen(curve.name)) continue;
                std::string words = curve.name, title;
                std::ranges::replace(words, '_', ' ');
                title = words;
                if (!title.empty())
                    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
                out.push_back(
                    {title, words + " (no unit)", "A part of the objective.", {{curve.name, words}}});
            }
        }
    }
    return out;
}

// Averages groups of `group` neighboring steps, ignoring NaN.
Line line_of(const std::string& name, const TrainingCurve& curve, size_t group) {
    Line line{name, {}, {}};
    for (size_t begin = 0; begin < curve.steps.size(); begin += group) {
        double steps = 0, sum = 0;
        size_t finite = 0;
        const size_t end = std::min(begin + group, curve.steps.size());
        const auto count = static_cast<double>(end - begin);
        for (size_t i = begin; i < end; ++i) {
            steps += curve.steps[i] / count;
            if (!std::isfinite(curve.values[i])) continue;
            sum += curve.values[i];
            ++finite;
        }
        line.x.push_back(steps);
        line.y.push_back(finite == 0 ? std::numeric_limits<double>::quiet_NaN()
                                     : sum / static_cast<double>(finite));
    }
    return line;
}

std::string four_digits(double v) { return fmt::format("{:.4g}", v); }

size_t count_runs(const Comparison& c) {
    size_t count = 0;
    for (const auto& variant : c.variants) count += variant.training.size();
    return count;
}

}  // namespace

RunResult parse_training(const std::string& text, const std::string& path) {
    fs::path folder = fs::path(path).parent_path();
    TrainingRun run;
    if (fs::path(path).filename() != "metrics.jsonl") folder = fs::path(path).replace_extension();
    if (folder.filename().string().starts_with("step-")) {
        run.name = folder.filename().string();
        folder = folder.parent_path();
    }
    if (folder.extension() == ".train") folder.replace_extension();
    const size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0
    for_lines(text, [&](std::string_view line, size_t number) {
        const auto begin = static_cast<size_t>(line.data() - text.data());
        if (line.empty() || (begin >= whole && try_parse_json<nlohmann::ordered_json>(line).is_discarded()))
            return;
        add_line(parse_json_line(line, "report", path, number), path, number, run);
    });
    if (run.curves.empty()) fail(ErrorCode::input, "report", "'{}' has no steps of training", path);
    RunResult out;
    out.label = path;
    out.variant.name = folder.filename().string();
    out.variant.training.push_back(std::move(run));
    return out;
}

RunResult read_training(const std::string& path) { return parse_training(read_text_file(path), path); }

std::vector<Figure> training_figures(const Comparison& c) {
    std::vector<Figure> out;
    const bool one = count_runs(c) == 1;
    for (const FigureSpec& figure : figure_specs(c)) {
        LinePlot plot{.label = "",
                      .x_axis = "step",
                      .y_axis = figure.axis,
                      .lines = {},
                      .format = four_digits,
                      .from_zero = figure.from_zero};
        size_t most = 1;
        for (const auto& variant : c.variants) {
            for (const auto& run : variant.training) {
                for (const auto& [name, words] : figure.curves) {
                    const auto found = std::ranges::find(run.curves, name, &TrainingCurve::name);
                    if (found == run.curves.end()) continue;
                    const size_t group = (found->steps.size() + kMostPoints - 1) / kMostPoints;
                    const std::string of = variant.name + (run.name.empty() ? "" : ", " + run.name);
                    const bool alone = figure.curves.size() == 1;
                    plot.lines.push_back(line_of(one     ? words
                                                 : alone ? of
                                                         : of + ": " + words,
                                                 *found, group));
                    most = std::max(most, group);
                }
            }
        }
        if (plot.lines.empty()) continue;
        const std::string means = most > 1 ? fmt::format("Points are means of up to {} steps.", most) : "";
        out.push_back({figure.title,
                       figure.caption + (figure.caption.empty() || means.empty() ? "" : " ") + means,
                       std::move(plot)});
    }
    return out;
}

}  // namespace refold
