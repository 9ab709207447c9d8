// Loads the items of a task's split from a data directory or the hub.
#pragma once

#include <string>
#include <vector>

#include "tasks/task_file.h"

namespace refold {

struct Dataset {
    std::vector<Record> items;            // with the source's fields added
    std::string file;                     // path of their file
    std::vector<std::string> more_files;  // of further splits
    std::string label;                    // names the file in messages
};

// `split`: also several, "a+b": a file that a source has under this name, else one after the other. `data`:
// the directory with the files; empty: the hub. Throws Error(usage) when a directory is needed and
// not given, Error(io) when it lacks the file (with the names looked for and where to get it), Error(input)
// with file and line for malformed content, and the hub's errors.
Dataset load_dataset(const TaskFile& task, const std::string& split, const std::string& data);

// Makes the items of `text`, the content of a file, as `source` describes them.
std::vector<Record> make_items(const DataSource& source, const std::string& text, const std::string& label);

}  // namespace refold
