// The program under test.
#pragma once

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace refold {

inline Outcome refold(std::vector<std::string> words, const std::string& input = "",
                      std::vector<std::string> variables = {}) {
    words.insert(words.begin(), REFOLD_BINARY);
    return Process(std::move(words), input, std::move(variables)).wait();
}

inline nlohmann::json refold_json(std::vector<std::string> words, const std::string& input = "",
                                  std::vector<std::string> variables = {}) {
    words.emplace_back("--json");
    const Outcome outcome = refold(words, input, std::move(variables));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    nlohmann::json parsed = nlohmann::json::parse(outcome.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << outcome.out;
    return parsed;
}

inline void expect_keys(const nlohmann::json& value, const std::vector<std::string>& keys) {
    for (const auto& key : keys) EXPECT_TRUE(value.contains(key)) << key;
}

// Expects the exit code and one error message that contains all of `parts`.
inline void expect_error(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr("refold: error: "));
    for (const auto& part : parts) EXPECT_THAT(outcome.err, testing::HasSubstr(part));
    EXPECT_THAT(outcome.out, testing::IsEmpty());
}

}  // namespace refold
