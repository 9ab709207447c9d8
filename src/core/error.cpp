#include "core/error.h"

namespace refold {

int exit_code(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::usage: return 2;
        case ErrorCode::interrupted: return 130;
        default: return 1;
    }
}

}  // namespace refold
