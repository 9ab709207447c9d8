// Measures the rows of a paper's table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "papers/paper_result.h"

namespace refold::cli {

struct ReproductionOptions {
    std::string models;                              // folder with models by name; may be empty
    std::string model;                               // in place of the table's models; may be empty
    std::vector<std::string> rows;                   // names; empty: all
    std::vector<std::string> columns;                // to be measured; likewise
    std::string texts;                               // folder with texts; may be empty
    std::string data;                                // folder with the tasks' data; empty: from the hub
    std::vector<std::string> calibration, training;  // files
    std::map<std::string, std::string> other_tasks;  // measured in place of a column's
    int64_t calibration_tokens = 0;                  // 0: the recipe's
    int64_t items = 0;                               // of each task; 0: all
    std::map<std::string, int64_t> items_of;         // of a column's task, in place of `items`
    int64_t windows = 0;                             // of a text; 0: all
    int threads = 0;
    std::string work;  // folder with the numbers so far; empty: in the cache
    bool quiet = false;
};

// Plans, makes and measures every row; numbers that are known already are not measured again. What cannot be
// measured has the reason in its cell. Throws Error(usage) for a row, column or task that
// the table does not have.
PaperResult reproduce(const PaperTable& table, const ReproductionOptions& options);

}  // namespace refold::cli
