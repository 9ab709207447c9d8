#pragma once

#include <cstdint>
#include <vector>

namespace refold {

// Two texts as one row of an encoder.
struct PairEncoding {
    std::vector<int32_t> ids;
    std::vector<int32_t> token_types;  // the segment of every id: 0 or 1
};

}  // namespace refold
