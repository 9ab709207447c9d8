// Which models of the papers' tables are on this machine.
#pragma once

#include <string>
#include <vector>

#include "papers/paper_table.h"

namespace refold::cli {

// Path of a model that a row names: in `folder`, or the one that its config.json names on the hub; empty when
// it is not there.
std::string find_paper_model(const PaperTable& table, const std::string& name, const std::string& folder);

// A measure that takes the model to run.
bool is_measured(const PaperColumn& column);

// What a table needs and what of it is there, for `reproduce --list`.
struct PaperNeeds {
    std::vector<std::string> models, missing_models;
    bool tasks = false, texts = false, calibration = false, training = false;
};
PaperNeeds needs_of(const PaperTable& table, const std::string& models);

}  // namespace refold::cli
