#include "engine/cpu_level.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

struct Level {
    int64_t target;
    const char* name;
};
// Better ones have lower bits.
constexpr std::array kLevels = {Level{HWY_AVX3_DL, "avx512_vnni"}, Level{HWY_AVX3, "avx512"},
                                Level{HWY_AVX2, "avx2"},           Level{HWY_SSE4, "sse4"},
                                Level{HWY_SSSE3, "ssse3"},         Level{HWY_NEON, "neon"}};

// What the CPU has, whatever a test has chosen.
int64_t possible_targets() {
    static const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
    return targets;
}

}  // namespace

std::vector<std::string> cpu_levels() {
    std::vector<std::string> out;
    for (const auto& [target, name] : kLevels)
        if ((possible_targets() & target) != 0) out.emplace_back(name);
    return out;
}

std::string cpu_level() {
    possible_targets();
    const int64_t now = hwy::SupportedTargets() & HWY_TARGETS;
    for (const auto& [target, name] : kLevels)
        if ((now & target) != 0) return name;
    return "scalar";
}

void set_cpu_level(const std::string& name) {
    const auto levels = cpu_levels();
    if (std::find(levels.begin(), levels.end(), name) == levels.end())
        fail(ErrorCode::usage, "engine",
             "CPU level '{}': expected one that this program was built for and this CPU can run: {} "
             "(scripts/build --portable builds all)",
             name, fmt::join(levels, ", "));
    const auto& level =
        *std::find_if(kLevels.begin(), kLevels.end(), [&](const Level& l) { return l.name == name; });
    // Those that the level is above stay possible.
    hwy::SetSupportedTargetsForTest(possible_targets() & ~(level.target - 1));
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void choose_cpu_level() {
    static std::once_flag once;
    std::call_once(once, [] {
        possible_targets();
        if (const char* name = std::getenv("REFOLD_CPU"); name != nullptr && *name != '\0') {
            set_cpu_level(name);
        }
    });
}

}  // namespace refold
