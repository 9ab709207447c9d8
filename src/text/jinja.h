// Jinja templates, for prompts of tasks and for chat templates: rendered as Python's Jinja does, or refused
// with an error. What is refused: statements that read other templates, the filters pprint, random,
// striptags, urlize and wordwrap, arithmetic with integers beyond 64 bits, methods that change a list or
// mapping, and templates beyond the bounds of text/jinja/budget.h.
//
// Templates of tasks have these functions besides Jinja's:
// - index(list or text, item): the index of an item; an error if it is missing
// - between(text, begin, end): the text between the first `begin` and the last `end` after it
// - remove_between(text, begin, end): the text without the parts between two marks on one line, marks
// included
// - capitalize(text), strip(text): as the methods of Python's str
// - literal(text): the value of a Python literal made of lists, mappings, texts and numbers
// - range(...): as Jinja's, of at most 100,000 numbers, like that of Jinja's sandbox
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace refold {

struct JinjaOptions {
    // true: as in lm-evaluation-harness: Python's defaults, which trim nothing and keep the last newline; an
    // undefined variable is an error.
    // false: as transformers renders chat templates: with trim_blocks and lstrip_blocks, its own `tojson`,
    // raise_exception() and strftime_now(); an undefined variable prints nothing.
    bool keep_whitespace = true;
};

class JinjaTemplate {
public:
    // Throws Error(input) with the line when `source` is no valid template, or when its brackets or blocks
    // are nested too deeply.
    explicit JinjaTemplate(const std::string& source, const JinjaOptions& options = {});
    ~JinjaTemplate();
    JinjaTemplate(JinjaTemplate&&) noexcept;
    JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

    const std::string& source() const { return source_; }
    // `variables`: an object; integers of any size are those of core/json_number.h. Throws Error(input) for
    // what Python's Jinja refuses, when the template itself raises an error, and beyond the bounds.
    std::string render(const nlohmann::ordered_json& variables) const;
    // The value, with its type, of a template that is one expression, "{{ [a, b] }}"; else the rendered text.
    nlohmann::ordered_json evaluate(const nlohmann::ordered_json& variables) const;

private:
    struct Program;
    std::string source_;
    std::unique_ptr<Program> program_;
};

}  // namespace refold
