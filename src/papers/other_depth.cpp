#include "papers/other_depth.h"

#include <cctype>

#include "core/error.h"

namespace refold {
namespace {

// Adds to all numbers of a list of layers, such as "16-19,20-23".
std::string moved(const std::string& list, int64_t by, const char* method) {
    std::string out;
    for (size_t i = 0; i < list.size();) {
        size_t digits = 0;
        while (i + digits < list.size() && std::isdigit(static_cast<unsigned char>(list[i + digits])) != 0)
            ++digits;
        if (digits == 0) {
            out += list[i++];
            continue;
        }
        const int64_t layer = std::stoll(list.substr(i, digits)) + by;
        if (layer < 0)
            fail(ErrorCode::usage, "reproduce",
                 "{}: the recipe names layers ({}) that this model is not deep enough for - give the row a "
                 "recipe for this model under 'for'",
                 method, list);
        out += std::to_string(layer);
        i += digits;
    }
    return out;
}

bool names_layers(const std::string& option, const std::string& value) {
    if (option != "layers" && option != "superblocks") return false;
    return value.find_first_not_of("0123456789,- ") == std::string::npos;
}

}  // namespace

Recipe for_depth(const Recipe& recipe, size_t from, size_t to) {
    if (from == to) return recipe;
    Recipe out = recipe;
    for (RecipeStep& step : out.steps) {
        std::vector<GivenOption> given;
        for (const auto& [name, value] : step.options.entries()) {
            const auto by = static_cast<int64_t>(to) - static_cast<int64_t>(from);
            given.push_back(
                {name, names_layers(name, value) ? moved(value, by, step.method->name) : value, "recipe"});
        }
        step.options = Options(*step.method, given);
    }
    return out;
}

}  // namespace refold
