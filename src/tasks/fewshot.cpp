#include "tasks/fewshot.h"

#include "core/error.h"

namespace refold {

FewShotSampler::FewShotSampler(std::span<const Record> pool, const FewShotOptions& options, std::string label)
    : pool_(pool), options_(options), label_(std::move(label)), random_(options.seed) {}

std::vector<size_t> FewShotSampler::draw(const nlohmann::ordered_json& item) {
    const auto shots = static_cast<size_t>(options_.shots);
    if (shots == 0) return {};
    if (options_.first_n) {
        std::vector<size_t> first = options_.exclude_item ? all_but(item) : std::vector<size_t>{};
        if (!options_.exclude_item) {
            for (size_t i = 0; i < pool_.size() && i < shots; ++i) first.push_back(i);
        }
        if (first.size() < shots) fail_few(first.size());
        first.resize(shots);
        return first;
    }
    const size_t wanted = shots + (options_.exclude_item ? 1 : 0);
    if (wanted > pool_.size()) fail_few(pool_.size());
    std::vector<size_t> drawn = random_.sample(pool_.size(), wanted);
    if (!options_.exclude_item) return drawn;
    std::erase_if(drawn, [&](size_t i) { return pool_[i].fields == item; });
    if (drawn.size() < shots) {
        // The item is in the pool several times and was drawn more than once.
        const std::vector<size_t> others = all_but(item);
        if (others.size() < shots) fail_few(others.size());
        drawn.clear();
        for (const size_t i : random_.sample(others.size(), shots)) drawn.push_back(others[i]);
    }
    drawn.resize(shots);
    return drawn;
}

std::vector<size_t> FewShotSampler::all_but(const nlohmann::ordered_json& item) const {
    std::vector<size_t> others;
    for (size_t i = 0; i < pool_.size(); ++i) {
        if (pool_[i].fields != item) others.push_back(i);
    }
    return others;
}

void FewShotSampler::fail_few(size_t count) const {
    fail(ErrorCode::usage, "task",
         "{} examples are wanted before each item, but {} has only {} to choose from - give a "
         "smaller --shots",
         options_.shots, label_, count);
}

}  // namespace refold
