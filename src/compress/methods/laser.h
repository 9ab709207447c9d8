// LASER: single matrices replaced by their truncated singular value decomposition (arXiv 2312.13558).
#pragma once

#include <string>

#include "compress/method.h"

namespace refold {

extern const Method kLaser;

namespace laser {

// The rank that `part` of the largest possible one means: int(full * part), as the authors' program.
int64_t rank_of(double part, int64_t full);

}  // namespace laser
}  // namespace refold
