// Task files: the definition of a task and the sources of its data. docs/tasks.md describes the YAML.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tasks/item.h"
#include "tasks/needle.h"
#include "tasks/records.h"

namespace refold {

// One way in which a data set is published. Splits are named as in TaskFile.
struct DataSource {
    // Paths below the data directory, per split; the first existing one is used. "archive.zip!member" reads
    // from an archive.
    std::map<std::string, std::vector<std::string>> files;
    std::string get;  // where users get the files, for messages
    // On the hub: files of the repository in `form`, or rows of its (Parquet) splits.
    std::string hub, config = "default";
    std::map<std::string, std::string> hub_files, hub_splits;

    RecordOptions form;
    std::map<std::string, std::string> labels;  // per split: a file whose line i is field "label" of item i
    std::map<std::string, std::string>
        only;  // per split: a JSON file whose keys select the items, in its order
    std::vector<std::pair<std::string, std::string>> fields;  // templates of additional fields
    std::string where;  // template; only items for which it is True are kept
};

struct TaskFile {
    TaskSpec spec;
    std::string label;  // names the file in messages
    std::string licence, source, about;
    std::vector<std::string> aliases;

    std::vector<DataSource> data;
    std::string split;  // the evaluated split, or several, "a+b", one after the other
    double last = 1;    // part of the items that is evaluated, the last ones
    // Items with the same text in field `alike` are one, and left out where field `agreeing` differs among
    // them; empty: no such rule.
    std::string alike, agreeing;
    std::string fewshot_split;  // the split of the examples; empty: `split`
    bool first_n = false;       // takes the first examples instead of drawing
    bool exclude_item = false;  // the item itself is no example
    std::string generator;      // "needle": the items are generated; `data` holds the text around needles
    NeedleKind needle;          // what it generates

    // Templates.
    std::string prompt;
    std::vector<std::string> choices;  // a fixed number of choices,
    std::string choice_list;           // or one template that yields a list
    std::string prompt_list;           // contexts that differ by choice; `target` is then the continuation
    std::string gold;
    std::string target;      // loglikelihood: the continuation; generate_until: the answer in examples
    std::string references;  // generate_until: accepted answers; empty: `target`
};

// The task, or one task per subject for a file with `subjects`; then its variants in the same way. Throws
// Error(input) when the text is not YAML of this shape, Error(usage) for unknown keys and values; messages
// name `label`, line and the nearest valid name.
std::vector<TaskFile> parse_task_file(const std::string& text, const std::string& label);

}  // namespace refold
