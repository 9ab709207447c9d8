#include "cli/row_numbers.h"

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/text.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The number that a JSON pointer leads to; NaN past the end of a list.
double number_at(const Json& printed, const std::string& pointer) {
    const Json::json_pointer place(pointer);
    const bool listed = !place.empty() && printed.contains(place.parent_pointer()) &&
                        printed[place.parent_pointer()].is_array();
    if (listed && !printed.contains(place)) return std::nan("");
    if (!printed.contains(place) || !printed[place].is_number())
        fail(ErrorCode::input, "reproduce", "there is no number '{}' in what the command printed", pointer);
    return printed[place].get<double>();
}

}  // namespace

std::string RowNumbers::missing(const PaperColumn& column) const {
    if (std::string reason = model_.missing(); !reason.empty()) return reason;
    if (!column.text.empty() && !fs::exists(fs::path(run_.options.texts) / column.text))
        return fmt::format("needs the text {} (--texts)", column.text);
    if (column.measure == PaperMeasure::task && model_.row().kv_budget < 1)
        return "tasks go back to the common beginning of prompts, which an evicting cache cannot";
    return "";
}

double RowNumbers::measure(const PaperColumn& column) {
    switch (column.measure) {
        case PaperMeasure::perplexity: return of_text(column) * column.scale;
        case PaperMeasure::loss: return std::log(of_text(column)) * column.scale;
        case PaperMeasure::task: return of_task(column) * column.scale;
        default: return of_command(column.words, column.value) * column.scale;
    }
}

double RowNumbers::of_text(const PaperColumn& column) {
    const double budget = model_.row().kv_budget;
    std::vector<std::string> words = {"eval", "ppl", "{model}", "--text",
                                      (fs::path(run_.options.texts) / column.text).string()};
    if (run_.options.windows > 0)
        words.insert(words.end(), {"--max-windows", std::to_string(run_.options.windows)});
    if (budget < 1)
        words.insert(words.end(), {"--kv-policy", "h2o", "--kv-budget", fmt::format("{}", budget)});
    return of_command(words, "/perplexity");
}

double RowNumbers::of_task(const PaperColumn& column) {
    const ReproductionOptions& options = run_.options;
    const auto other = options.other_tasks.find(column.task);
    const std::string& task = other == options.other_tasks.end() ? column.task : other->second;
    std::vector<std::string> words = {"eval", "tasks", "{model}", "--tasks", task};
    if (column.shots) words.insert(words.end(), {"--shots", std::to_string(*column.shots)});
    if (!options.data.empty()) words.insert(words.end(), {"--data", options.data});
    const auto own = options.items_of.find(column.task);
    const int64_t items = own == options.items_of.end() ? options.items : own->second;
    if (items > 0) words.insert(words.end(), {"--limit", std::to_string(items)});
    const std::string name = fs::path(task).stem().string();
    return of_command(words, fmt::format("/results/{}/{},none", name, column.metric));
}

double RowNumbers::of_command(std::vector<std::string> words, const std::string& value) {
    const auto& options = model_.row().options;
    words.insert(words.end(), options.begin(), options.end());
    model_.show(model_.filled(words));
    const std::string of = key(words, value);
    if (const double* known = run_.numbers.find(of)) return *known;
    const double found = number_at(printed_by(words), value);
    run_.numbers.keep(of, found);
    return found;
}

// What a measured number is of: the model, what was done to it, and the words of the command.
std::string RowNumbers::key(const std::vector<std::string>& words, const std::string& value) const {
    Json of = model_.identity();
    of["words"] = words;
    of["value"] = value;
    std::error_code none;
    for (const std::string& word : model_.filled(words))
        if (word != model_.path() && fs::is_regular_file(word, none))
            of["files"].push_back(file_identity(word));
    return of.dump();
}

const Json& RowNumbers::printed_by(const std::vector<std::string>& words) {
    if (const auto printed = printed_.find(words); printed != printed_.end()) return printed->second;
    model_.make();
    return printed_.emplace(words, run_.refold(model_.filled(words))).first->second;
}

}  // namespace refold::cli
