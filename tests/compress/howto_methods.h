// The method of docs/howto-add-method.md, listed by cmake/RefoldRegistry.cmake like those of src/compress.
#pragma once

#include <span>

#include "compress/method/method.h"

namespace refold {

std::span<const Method* const> howto_methods();

}  // namespace refold
