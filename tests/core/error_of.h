// The message of an error that must be thrown.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace refold {

// Returns the message of the Error that `body` throws; it must have this code.
inline std::string error_of(const std::function<void()>& body, ErrorCode code = ErrorCode::input) {
    try {
        body();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
}

}  // namespace refold
