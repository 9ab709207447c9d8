// Loads tasks by name or file with their items: reads data, fills in templates, draws examples.
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
    uint64_t seed = 1234;            // for drawing examples and generating items
    int64_t length = 4096;           // tokens of generated items (RULER)
    std::function<int64_t(const std::string&)> count_tokens{};  // for generated items; unset: estimated
    DataHashes* hashes = nullptr;  // of data files, shared by many tasks; null: hashes for this task alone
};

// Built-in tasks, groups and their other names, sorted.
std::vector<std::string> task_names();

// A group becomes the names of its tasks, another name the task's own name, and a path of a YAML file itself,
// or its tasks, "FILE#task", if it has several. Throws Error(usage) with the nearest name for an unknown
// name, and the errors of parse_task_file().
std::vector<std::string> expand_tasks(const std::string& name_or_path);

// The definition of one task. Throws as expand_tasks().
TaskFile find_task(const std::string& name_or_path);

// One task with its items. Throws as find_task() and load_dataset(); Error(input) with file and line for an
// item without a right choice or with fields that do not fit the templates; Error(usage) for more examples
// than there are.
Task load_task(const std::string& name_or_path, const TaskOptions& options);

}  // namespace refold
