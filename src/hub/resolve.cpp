#include "hub/resolve.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "hub/hub.h"
#include "io/catalogue.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

bool looks_like_path(const std::string& argument) {
    const std::string extension = fs::path(argument).extension();
    return argument.starts_with('/') || argument.starts_with('.') || argument.starts_with('~') ||
           argument.ends_with('/') || std::ranges::count(argument, '/') > 1 || extension == ".gguf" ||
           extension == ".safetensors" || extension == ".json";
}

std::string resolve_hub(const std::string& argument, const HubSpec& spec) {
    if (const auto model = find_cached(spec)) return model->path;
    fail(ErrorCode::usage, "model",
         "'{}' is neither a path nor a model of the hub that has been fetched completely - run `refold pull "
         "{}` "
         "first",
         argument, argument);
}

}  // namespace

std::string resolve_model(const std::string& argument) {
    std::error_code ignored;
    if (!argument.empty() && fs::exists(argument, ignored)) return argument;
    if (const CatalogueEntry* const entry = find_catalogue_entry(argument); entry != nullptr) {
        if (is_pulled(*entry)) return pulled_path(*entry);
        fail(ErrorCode::usage, "model", "'{}' has not been fetched - run `refold pull {}` first ({})",
             argument, argument, format_bytes(entry->download_bytes));
    }
    if (const auto spec = parse_hub_spec(argument); spec && !looks_like_path(spec->repo)) {
        return resolve_hub(argument, *spec);
    }
    if (looks_like_path(argument)) fail(ErrorCode::io, "model", "'{}' does not exist", argument);
    std::vector<std::string> names;
    for (const auto& entry : catalogue()) names.emplace_back(entry.name);
    fail(ErrorCode::usage, "model", "'{}' is neither a file nor a model's name - {}; or org/name of the hub",
         argument, suggestion(argument, names));
}

}  // namespace refold
