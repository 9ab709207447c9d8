// The error code of an action that must fail.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace refold {

// Returns the code of the Error that `action` throws; its message must contain `expected_text`.
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
