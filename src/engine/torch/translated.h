// Turns libtorch's exceptions into refold::Error.
#pragma once

#include <c10/util/Exception.h>

#include "core/error.h"

namespace refold {

template <typename Body>
auto translated(Body&& body) {
    try {
        return body();
    } catch (const c10::Error& error) {
        fail(ErrorCode::internal, "torch engine", "{}", error.what_without_backtrace());
    }
}

}  // namespace refold
