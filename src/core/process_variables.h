// Environment variables, and what torchrun and others say in them about this process.
#pragma once

namespace refold {

// Null when the variable is not set, or empty.
const char* environment_variable(const char* name);

// `value`, that of a variable, as a number. Throws Error(usage) naming both unless it is one in these bounds.
int environment_number(const char* name, const char* value, int smallest, int largest);

// The number of processes of this run: WORLD_SIZE, or 1. Throws Error(usage) as above.
int world_size();
// Whether this is the process of rank 0 (RANK), or the only one. Throws Error(usage) as above.
bool first_process();
// The number of this process among those of its machine: LOCAL_RANK, or else RANK; 0 in a run of one process.
// Throws Error(usage) as above.
int local_rank();

}  // namespace refold
