// Tasks by name or file, with their items: data read, templates filled in, examples drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tasks/archive.h"
#include "tasks/item.h"
#include "tasks/task_file.h"

namespace refold {

struct TaskOptions {
    std::string data{};              // directory with the data sets; empty: the hub
    int64_t limit = 0;               // items, from the first; 0: all
    std::optional<int64_t> shots{};  // examples before each item; unset: the task's own number
    uint64_t seed = 1234;            // of the draw of examples (and of generated items)
    int64_t length = 4096;           // tokens of generated items (RULER)
    std::function<int64_t(const std::string&)> count_tokens{};  // for generated items; unset: estimated
    DataHashes* hashes = nullptr;  // of data files, for many tasks; null: hashed for this task alone
};

// Built-in tasks, groups and other names for them, sorted.
std::vector<std::string> task_names();

// A group as the names of its tasks, another name as the task's own, a path of a YAML file as itself (as its
// tasks, "FILE#task", when it has several). Throws Error(usage) for an unknown name, with the nearest one,
// and what parse_task_file() throws.
std::vector<std::string> expand_tasks(const std::string& name_or_path);

// The definition of one task. Throws as expand_tasks().
TaskFile find_task(const std::string& name_or_path);

// One task with its items. Throws as find_task() and load_dataset(), Error(input) for an item without a right
// choice or whose fields are not what the templates need (file and line), Error(usage) for more examples than
// there are.
Task load_task(const std::string& name_or_path, const TaskOptions& options);

}  // namespace refold
