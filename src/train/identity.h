// What a training run is, as text of lines "what: value": TrainRequest::identity.
#pragma once

#include <string>

namespace refold {

// Names every line that only one text has or whose value differs: "batch (then 8, now 4), another text".
// `there` and `here` are the words for the two texts.
std::string identity_difference(const std::string& a, const std::string& b, const char* there = "then",
                                const char* here = "now");

}  // namespace refold
