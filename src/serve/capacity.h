// Options of the KV cache that ask for more than can be of use.
#pragma once

#include <cstdint>
#include <string>

namespace refold {

struct Capacity {
    int64_t slots = 0;
    int64_t context = 0;    // tokens of one sequence
    int64_t kv_tokens = 0;  // of all sequences, as asked for; 0: not
    int64_t trained = 0;    // tokens that the model was trained for
};

// Returns what the operator should know about them; mostly empty. Throws Error(usage) for a cache with more
// tokens than all slots can use, and than the cache has by default.
std::string check_capacity(const Capacity& capacity);

}  // namespace refold
