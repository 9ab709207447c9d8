#pragma once

#include <string>

#include "text/jinja/ast.h"

namespace refold::jinja {

// Throws TemplateError for what Jinja refuses, for statements that need other templates (extends, include,
// import), and for expressions or blocks that are nested too deeply.
// Templates of tasks keep their white space, and have neither "break" and "continue" nor "generation".
Template parse(const std::string& source, bool is_task);

// Fills Body::undefined_first of the whole template.
void find_undefined_names(Template& parsed);

// Whether the template has a filter or test of that name.
bool is_filter(const std::string& name);
bool is_test(const std::string& name);

}  // namespace refold::jinja
