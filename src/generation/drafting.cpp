#include "generation/drafting.h"

#include <bit>
#include <numeric>
#include <vector>

namespace refold {
namespace {

constexpr int64_t kWindow = 4;  // tokens of each sequence, for DraftPace

int64_t most_drafts(const DecodingOptions& options) {
    return options.draft + options.lookup + (options.draft_model != nullptr ? options.draft_tokens : 0);
}

// Fewer drafts may be better: a model's cost time, and rows that verify them do, beyond eight of all
// sequences together (panel_product.cpp). So sequences have a power of two of rows. Early loops have as many
// drafts under way as there are loops.
std::vector<int64_t> ways(const DecodingOptions& options) {
    if (options.draft_always) return {most_drafts(options)};
    std::vector<int64_t> out = {0};
    if (options.draft == 0)
        for (int64_t drafts = 1; drafts < most_drafts(options); drafts = 2 * drafts + 1)
            out.push_back(drafts);
    out.push_back(most_drafts(options));
    return out;
}

}  // namespace

Drafting::Drafting(const DecodingOptions& options, const DecodingCounts& counts)
    : options_(options), counts_(counts) {
    if (options.draft_model != nullptr) model_.emplace(*options.draft_model, options.draft_always);
}

uint64_t Drafting::chosen() const {
    return std::accumulate(counts_.exits.begin(), counts_.exits.end(), uint64_t{0});
}

int64_t Drafting::begin_step(std::span<Sequence* const> generating) {
    pace_ = nullptr;
    if (generating.empty() || most_drafts(options_) == 0) return 0;
    const int size = std::bit_width(generating.size()) - 1;
    pace_ = &paces_.try_emplace(size, ways(options_), kWindow << size).first->second;
    began_ = Clock::now();
    chosen_before_ = chosen();
    drafted_before_ = counts_.drafted;
    const int64_t drafts = pace_->drafts();
    if (model_ && drafts > 0 && model_->draft(generating, drafts)) {
        const auto read = Clock::now();
        pace_->read_text(std::chrono::duration<double>(read - began_).count());
        began_ = read;
    }
    return drafts;
}

void Drafting::end_step(bool has_prompts) {
    if (pace_ == nullptr || has_prompts) return;
    pace_->took(std::chrono::duration<double>(Clock::now() - began_).count(),
                static_cast<int64_t>(chosen() - chosen_before_), counts_.drafted > drafted_before_);
}

void Drafting::end(const Sequence& sequence) {
    if (model_) model_->end(sequence);
}

void Drafting::clear() {
    if (model_) model_->clear();
}

}  // namespace refold
