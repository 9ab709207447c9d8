// JSON of requests' bodies, read in linear time. It is counted first, so that a request that is too large is
// refused before it takes memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/json_text.h"

namespace refold {

// Keys are sorted: finding one does not take longer the more a client sends.
using BodyValue = nlohmann::json;

// Values and keys of one body, and levels of nesting.
constexpr size_t kMostBodyValues = 1 << 20;
constexpr int kDeepestBody = 64;
constexpr JsonLimits kBodyLimits{.bytes = SIZE_MAX, .values = kMostBodyValues, .depth = size_t{kDeepestBody}};

struct BodyCost {
    size_t body = 0;    // bytes of the JSON
    size_t values = 0;  // values and keys
    size_t text = 0;    // bytes of all texts

    // Estimates of memory, in bytes: while the body is read, and after that, for the request made of it. Both
    // include the body as it came in, twice.
    size_t to_read() const { return 2 * body + 2 * text + 96 * values; }
    size_t to_keep() const { return 2 * body + text + 4 * values; }
};

// Throws ApiError (400) for a body that is not JSON or above the limits.
BodyCost count_body(std::string_view body);

class BodyJson {
public:
    // Throws as count_body() does, and std::bad_alloc.
    explicit BodyJson(std::string_view body);
    // Allocates nothing, unlike the destructors of nlohmann's arrays and objects, which end the process when
    // memory is short.
    ~BodyJson();
    BodyJson(const BodyJson&) = delete;
    BodyJson& operator=(const BodyJson&) = delete;

    const BodyValue& value() const { return value_; }

private:
    BodyValue value_;
};

}  // namespace refold
