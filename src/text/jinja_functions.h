// The functions that templates have besides Jinja's own filters and methods; text/jinja.h lists them.
#pragma once

#include <jinja/runtime.h>

namespace refold {

void add_functions(jinja::context& context);

}  // namespace refold
