// Long texts without a space, or of spaces only, for libllama's byte-level BPE.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// Whether libllama splits texts with std::regex, whose recursion overflows the stack at a match of 20,000
// characters. `pre` is the vocabulary's tokenizer.ggml.pre.
bool splits_recursively(const std::string& pre);

// Ends of the parts that `text` is cut into, so that no run of white space, or of anything else, is longer
// than 8,192 characters in a part. A cut is made where a letter meets something else if there is such a
// place.
std::vector<size_t> cuts_of_long_runs(std::string_view text);

}  // namespace refold
