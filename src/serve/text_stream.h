// Text of a generation while it grows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/utf8_stream.h"

namespace refold {

class TextStream {
public:
    // Texts that end the generation; empty ones count for nothing.
    explicit TextStream(std::vector<std::string> stops);

    // Bytes of the next token. Returns what is final now: whole characters, and nothing that may still become
    // a stop text.
    std::string push(std::string_view bytes);
    // What is left at the end.
    std::string finish();
    // A stop text has come: the text before the first one has been returned.
    bool stopped() const { return stopped_; }

private:
    std::string release(bool all);

    std::vector<std::string> stops_;
    Utf8Stream utf8_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace refold
