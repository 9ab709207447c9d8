// What a target, fuzz_NAME.cpp, defines. Two drivers call it: random_driver.cpp (scripts/test) and
// coverage_driver.cpp (Clang's libFuzzer, bench/fuzz).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace refold {

// Runs one input. True: it was read; false: it was refused with a clear error. Everything else is a finding:
// an exception that escapes, abort(), a report of a sanitizer, memory out of proportion.
bool fuzz_one(std::string_view input);

// Valid inputs to start from, all of which are read.
std::vector<std::string> fuzz_seeds();

// Words that the reader knows, for mutations. At least one.
std::span<const std::string_view> fuzz_words();

// Calls `read`. False if it throws refold::Error; Error(internal) and other exceptions pass.
template <typename Read>
bool reads(Read&& read) {
    try {
        read();
        return true;
    } catch (const Error& error) {
        if (error.code() == ErrorCode::internal) throw;
        return false;
    }
}

// Takes a value, so that reading it is not optimized away.
inline void use(size_t value) {
    static volatile size_t sink = 0;
    sink = sink + value;
}

}  // namespace refold
