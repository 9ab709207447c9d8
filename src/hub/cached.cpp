#include "core/stored_text.h"
#include "core/text.h"
#include "hub/cache.h"
#include "hub/choice.h"
#include "hub/hub.h"

namespace refold {

std::optional<HubModel> find_cached(const HubSpec& spec) {
    const hub::RepoCache cache(hub_cache(), spec.repo, spec.dataset);
    const std::string commit = cache.commit_of(spec.revision);
    if (commit.empty()) return {};
    const auto folder = cache.snapshot(commit);
    const auto names = cache.files(commit);
    if (spec.dataset) {
        const auto path = folder / spec.file_or_quant;
        std::error_code missing;
        const auto bytes = std::filesystem::file_size(path, missing);
        if (missing) return {};
        return HubModel{.path = path, .commit = commit, .files = 1, .bytes = bytes};
    }
    const auto read = [&](const std::string& path) { return read_stored_text(folder / path); };
    const hub::Choice choice = hub::choose_files(names, spec.file_or_quant, read);
    if (!choice.problem.empty()) return {};
    HubModel model{.path = folder / choice.gguf, .commit = commit, .files = choice.files.size(), .bytes = 0};
    if (choice.gguf.empty()) model.path = folder;
    for (const auto& path : choice.files) model.bytes += std::filesystem::file_size(folder / path);
    return model;
}

}  // namespace refold
