#include "core/process_variables.h"

#include <charconv>
#include <cstdlib>
#include <string>

#include "core/error.h"

namespace refold {

const char* environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr || *value == '\0' ? nullptr : value;
}

int environment_number(const char* name, const char* value, int smallest, int largest) {
    int result = 0;
    const char* end = value + std::char_traits<char>::length(value);
    const auto [at, error] = std::from_chars(value, end, result);
    if (error != std::errc() || at != end || result < smallest || result > largest) {
        fail(ErrorCode::usage, "processes",
             "environment variable {}: got '{}', expected a number from {} to {}", name, value, smallest,
             largest);
    }
    return result;
}

int world_size() {
    const char* world = environment_variable("WORLD_SIZE");
    return world == nullptr ? 1 : environment_number("WORLD_SIZE", world, 1, 1 << 20);
}

bool first_process() {
    const int size = world_size();
    const char* rank = environment_variable("RANK");
    return size == 1 || rank == nullptr || environment_number("RANK", rank, 0, size - 1) == 0;
}

int local_rank() {
    const int size = world_size();
    if (size == 1) return 0;
    for (const char* name : {"LOCAL_RANK", "RANK"})
        if (const char* value = environment_variable(name))
            return environment_number(name, value, 0, size - 1);
    return 0;
}

}  // namespace refold
