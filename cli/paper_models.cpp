#include "cli/paper_models.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"
#include "hub/resolve.h"

namespace refold::cli {

namespace fs = std::filesystem;

std::string find_paper_model(const PaperTable& table, const std::string& name, const std::string& folder) {
    if (!folder.empty()) {
        for (const char* ending : {"", ".gguf"})
            if (const fs::path path = fs::path(folder) / (name + ending); fs::exists(path))
                return path.string();
    }
    const auto config = try_parse_json(read_text_file(paper_model_config(table, name)));
    if (!config.is_object() || !config.contains("_name_or_path")) return "";
    try {
        return resolve_model(config["_name_or_path"].get<std::string>());
    } catch (const Error&) {  // it has not been pulled
        return "";
    }
}

bool is_measured(const PaperColumn& column) {
    return column.measure != PaperMeasure::none && column.measure != PaperMeasure::planned &&
           column.measure != PaperMeasure::mean;
}

PaperNeeds needs_of(const PaperTable& table, const std::string& models) {
    PaperNeeds needs;
    for (const PaperColumn& c : table.columns) {
        needs.tasks |= c.measure == PaperMeasure::task;
        needs.texts |= !c.text.empty();
    }
    if (std::ranges::none_of(table.columns, is_measured)) return needs;
    needs.calibration = table.calibrates();
    needs.training = table.trains();
    needs.models = table.models();
    for (const std::string& name : needs.models)
        if (find_paper_model(table, name, models).empty()) needs.missing_models.push_back(name);
    return needs;
}

}  // namespace refold::cli
