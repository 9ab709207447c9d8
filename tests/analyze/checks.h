// Checks shared by the tests of the analysis.
#pragma once

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace refold {

inline void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& body) {
    try {
        body();
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        for (const auto& part : parts) EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
}

// Expects an undefined number when `expected` is undefined.
inline void expect_number(double got, double expected, double tolerance, const std::string& place) {
    if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << place << ": " << got;
    } else {
        EXPECT_NEAR(got, expected, tolerance) << place;
    }
}

}  // namespace refold
