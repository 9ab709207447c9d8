// Combines windows that several processes have scored.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/group.h"
#include "eval/perplexity.h"

namespace refold {

// Every process has filled in its own windows (Group::owns()), `per_token` values per scored token.
// Afterwards every process has all windows.
template <typename T>
void gather_windows(std::vector<std::vector<T>>& of_window, const PerplexityPlan& plan,
                    size_t per_token = 1) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::string own;
    for (const std::vector<T>& window : of_window)
        own.append(reinterpret_cast<const char*>(window.data()), window.size() * sizeof(T));
    const std::vector<std::string> all = group().gather(own);
    std::vector<size_t> at(all.size());
    for (size_t w = 0; w < of_window.size(); ++w) {
        const size_t rank = w % all.size();
        of_window[w].resize(static_cast<size_t>(plan.windows[w].scored()) * per_token);
        const size_t bytes = of_window[w].size() * sizeof(T);
        std::memcpy(static_cast<void*>(of_window[w].data()), all[rank].data() + at[rank], bytes);
        at[rank] += bytes;
    }
}

}  // namespace refold
