// The text of a generation while it grows: whole characters, up to a stop text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generation/utf8_stream.h"

namespace refold {

class TextStream {
public:
    // `stops` end the generation; empty ones are ignored.
    explicit TextStream(std::vector<std::string> stops);

    // Adds the bytes of the next token. Returns the text that is final: whole characters, and nothing that
    // may still become a stop text.
    std::string push(std::string_view bytes);
    // Returns the rest at the end.
    std::string finish();
    // A stop text has come: the text before the first one has been returned.
    bool stopped() const { return !stop_.empty(); }
    // The stop text that ended the generation; empty while there is none.
    const std::string& stop() const { return stop_; }

private:
    std::string release(bool all);

    std::vector<std::string> stops_;
    Utf8Stream utf8_;
    std::string held_, stop_;
};

// The text before the first stop text in it.
std::string before_stops(std::string text, const std::vector<std::string>& stops);

}  // namespace refold
