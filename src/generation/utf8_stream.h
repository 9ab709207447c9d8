// Turns the bytes of tokens into whole UTF-8 characters: a character may be spread over several tokens.
#pragma once

#include <string>
#include <string_view>

namespace refold {

class Utf8Stream {
public:
    // Returns the characters that are complete. Bytes that cannot become UTF-8 turn into U+FFFD.
    std::string push(std::string_view bytes);
    // Returns the rest at the end, without a character that has only begun.
    std::string finish();

private:
    std::string drain(bool last);
    std::string pending_;
};

}  // namespace refold
