// Models of files on this machine, for LoadedModels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/loaded_models.h"

namespace refold {

struct NamedAdapter {
    std::string name, path;  // by which clients ask for it; as load_adapter() takes it
};

struct LocalModelOptions {
    EngineOptions engine;
    SchedulerOptions scheduler;
    std::string draft_model = {};    // path of a model that drafts; empty: none
    std::string prefix_folder = {};  // keeps known prompts from one time to the next; empty: none does
    std::string chat_template = {};  // in place of the models' own; empty: those
    std::vector<NamedAdapter> adapters = {};
    // Told what the operator should know about a model's options; by any thread.
    std::function<void(const std::string& note)> note = {};
};

// The model at `path`, which `name` is the name of for clients. Loading throws Error as load_model(),
// load_adapter(), make_engine() and Scheduler do, and Error(usage) for options that do not fit the model.
ModelSource local_model(const std::string& path, const std::string& name, const LocalModelOptions& options);

// The models of a folder: .gguf files and Hugging Face directories, by name. Throws Error(usage) when there
// are none.
std::vector<std::string> models_in(const std::string& folder);

}  // namespace refold
