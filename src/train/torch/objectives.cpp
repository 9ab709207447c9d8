// The table of objectives. A new objective adds its header and an entry here, and an entry in
// train/objective.cpp.
#include "core/error.h"
#include "train/torch/objectives/distill.h"
#include "train/torch/objectives/early_exit.h"
#include "train/torch/objectives/postshare.h"
#include "train/torch/objectives/uptrain.h"

namespace refold {
namespace {

struct Entry {
    const char* name;
    std::unique_ptr<Objective> (*make)(const TrainRequest& request);
};
constexpr Entry kMakers[] = {{"uptrain", make_uptrain},
                             {"distill", make_distill},
                             {"early_exit", make_early_exit},
                             {"postshare", make_postshare}};

}  // namespace

std::unique_ptr<Objective> make_objective(const TrainRequest& request) {
    const ObjectiveInfo& info = find_objective(request.options.objective);
    if (info.teacher && request.teacher == nullptr)
        fail(ErrorCode::usage, "train", "objective '{}' needs the original model as its teacher, got none",
             info.name);
    for (const Entry& entry : kMakers)
        if (std::string(info.name) == entry.name) return entry.make(request);
    fail(ErrorCode::internal, "train", "objective '{}' has no maker", info.name);
}

}  // namespace refold
