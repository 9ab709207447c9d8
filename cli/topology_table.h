// A topology for people: where every position takes its weights from.
#pragma once

#include <string>

#include "model/model.h"

namespace refold::cli {

// One row per position; neighbours that share nothing are one row. "attn.q,o 0-2<-24.3-5, own 3-8": heads 0
// to 2 of these slots are heads 3 to 5 of position 24.
std::string topology_table(const Model& model);

}  // namespace refold::cli
