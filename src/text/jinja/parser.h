#pragma once

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace refold::jinja {

// Throws TemplateError for what Jinja refuses, for statements that need other templates (extends, include,
// import), and for expressions or blocks that are nested too deeply.
Template parse(const std::string& source, const LexerOptions& options);

// Fills Body::undefined_first of the whole template.
void find_undefined_names(Template& parsed);

// Whether the template has a filter or test of that name.
bool is_filter(const std::string& name);
bool is_test(const std::string& name);

}  // namespace refold::jinja
