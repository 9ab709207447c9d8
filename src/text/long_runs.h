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

// Ends of the parts that `text` is cut into, so that a part has at most 1,024 characters of white space one
// after the other, 512 digits, and 4,096 characters that are no white space. Cuts of the last kind are where
// letters, digits and punctuation meet, if they do; libllama's patterns cut there, too.
std::vector<size_t> cuts_of_long_runs(std::string_view text);

}  // namespace refold
