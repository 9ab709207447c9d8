// The server's threads beside those of its models.
#pragma once

namespace refold {

// The calling thread, which reads requests and sends answers, gets a tenth of the time of a thread of a
// model's step where both need the same core, but gets it at once. What it does for one client would
// otherwise hold up the answers of all: the threads of a step wait for each other.
void yield_to_steps();

}  // namespace refold
