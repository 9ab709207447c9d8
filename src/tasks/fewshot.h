// Chooses the examples before an item, as lm-evaluation-harness does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tasks/python_random.h"
#include "tasks/records.h"

namespace refold {

struct FewShotOptions {
    int64_t shots = 0;
    uint64_t seed = 1234;
    bool first_n = false;       // the first of the pool; else drawn for every item
    bool exclude_item = false;  // draw one more example and drop those that equal the item
};

// Uses one random generator for all items of a task: call draw() in their order.
class FewShotSampler {
public:
    // `label` names the pool in messages.
    FewShotSampler(std::span<const Record> pool, const FewShotOptions& options, std::string label);

    // Indices in the pool. Throws Error(usage) when the pool has too few examples.
    std::vector<size_t> draw(const nlohmann::ordered_json& item);

private:
    std::vector<size_t> all_but(const nlohmann::ordered_json& item) const;
    [[noreturn]] void fail_few(size_t count) const;

    std::span<const Record> pool_;
    FewShotOptions options_;
    std::string label_;
    PythonRandom random_;
};

}  // namespace refold
