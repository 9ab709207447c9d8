#include "vocab/growth.h"

#include "core/error.h"

namespace refold {

void check_steps(size_t steps, const JsonView& json) {
    if (steps > kMostSteps)
        fail(ErrorCode::unsupported, "tokenizer", "{}: there are more than {} steps", json.where(),
             kMostSteps);
}

std::string insertion(const JsonView& field) {
    std::string text = field.string();
    if (text.size() > kLongestInsertion)
        fail(ErrorCode::input, "tokenizer", "{} has {} bytes, expected at most {}", field.where(),
             text.size(), kLongestInsertion);
    return text;
}

void check_growth(size_t size, size_t longest) {
    if (size > longest)
        fail(ErrorCode::unsupported, "tokenizer",
             "the tokenizer makes a text longer than {} bytes, 64 times what it was", longest);
}

}  // namespace refold
