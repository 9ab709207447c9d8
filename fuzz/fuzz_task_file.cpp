// Fuzzes task files: for any text, a task is read or refused with refold::Error - no crash, no sanitizer
// report, no other exception.
#include <string>
#include <vector>

#include "target.h"
#include "task_words.h"
#include "tasks/builtin.h"
#include "tasks/dataset.h"

bool refold::fuzz_one(std::string_view input) {
    return reads([&] { parse_task_file(std::string(input), "fuzz"); });
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (const auto& file : builtin_task_files()) {
        // Long lists of subjects would get all of the changes.
        if (file.text.size() < 4000) seeds.emplace_back(file.text);
    }
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kTaskWords; }
