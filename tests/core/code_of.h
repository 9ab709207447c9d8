// What an action that must fail fails with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace refold {

// The code of the Error that `action` throws, in whose message `expected_text` must stand.
template <typename Action>
ErrorCode code_of(Action&& action, const std::string& expected_text = "") {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(expected_text), std::string::npos) << error.what();
        return error.code();
    }
    ADD_FAILURE() << "no error: " << expected_text;
    return ErrorCode::internal;
}

}  // namespace refold
