// Renders a parsed template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/environment.h"

namespace refold::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Throw TemplateError for what Jinja refuses and for what is beyond a bound (budget.h); a Rendering is
// around.
std::string render(const Template& parsed, Environment& environment, const Variables& variables);
// The value of a template that is one expression; empty if it is more.
std::optional<Value> evaluate(const Template& parsed, Environment& environment, const Variables& variables);

}  // namespace refold::jinja
