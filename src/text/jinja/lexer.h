// Splits a template into tokens, with Jinja's rules for white space around its marks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace refold::jinja {

enum class TokenType {
    data,              // text outside of marks
    expression_begin,  // {{
    expression_end,
    statement_begin,  // {%
    statement_end,
    name,
    text,
    number,
    mark,  // an operator or punctuation
    end
};

struct Token {
    TokenType type = TokenType::end;
    std::string text;  // of data, a name, a mark; a text after its escapes
    Value number = {};
    int line = 1;
};

struct LexerOptions {
    bool trim_blocks = false;       // drops the line break after a statement or comment
    bool lstrip_blocks = false;     // drops white space before them, from the line's begin
    bool keep_last_newline = true;  // of the template
};

// The last token is `end`. Throws TemplateError.
std::vector<Token> tokenize(const std::string& source, const LexerOptions& options);

}  // namespace refold::jinja
