// What generated text must look like.
#pragma once

#include <string>
#include <vector>

namespace refold {

// It holds from the first generated token on: every token that would lead out of it is banned, and the text
// can end only where it is complete. A generation that max_tokens or the context ends may be incomplete
// (FinishReason::length).
struct OutputFormat {
    enum class Kind {
        any,
        json,         // a JSON object
        json_schema,  // `text`: JSON Schema
        grammar,      // `text`: GBNF, whose first rule is `root`
        regex,        // `text`: a regular expression for the whole output
        choice,       // one of `choices`
    };
    Kind kind = Kind::any;
    std::string text = {};
    std::vector<std::string> choices = {};
    std::string field = {};  // what asks for it, for messages: "response_format"

    // Who asks for it makes no other format.
    bool operator==(const OutputFormat& o) const {
        return kind == o.kind && text == o.text && choices == o.choices;
    }
};

}  // namespace refold
