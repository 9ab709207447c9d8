#include "vocab/unigram.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score

}  // namespace

Unigram::Unigram(std::vector<std::string> tokens, std::vector<double> scores, const Options& options)
    : options_(options), scores_(std::move(scores)), trie_(tokens) {
    for (size_t id = 0; id < tokens.size(); ++id) ids_.insert_or_assign(tokens[id], static_cast<int32_t>(id));
    const auto lowest = std::min_element(scores_.begin(), scores_.end());
    unknown_score_ = (lowest == scores_.end() ? 0 : *lowest) - kUnknownPenalty;
}

void Unigram::append(std::string_view piece, std::vector<int32_t>& out) const {
    if (const auto found = ids_.find(piece); found != ids_.end()) {
        out.push_back(found->second);
        return;
    }
    if (options_.byte_fallback) {
        std::vector<int32_t> bytes;
        for (const char c : piece) {
            const auto found = ids_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
            if (found == ids_.end()) break;
            bytes.push_back(found->second);
        }
        if (bytes.size() == piece.size()) {
            out.insert(out.end(), bytes.begin(), bytes.end());
            return;
        }
    }
    if (!options_.unknown) {
        fail(ErrorCode::unsupported, "tokenizer", "the vocabulary has no token for '{}' and no unknown token",
             piece);
    }
    out.push_back(*options_.unknown);
}

void Unigram::encode(std::string_view text, std::vector<int32_t>& out) const {
    constexpr int32_t kUnknown = -1;
    struct End {
        double score = 0;  // of the best path that ends here
        size_t start = std::numeric_limits<size_t>::max();
        int32_t id = kUnknown;

        void offer(double other, size_t from, int32_t token) {
            if (start == std::numeric_limits<size_t>::max() || other > score) *this = {other, from, token};
        }
    };
    std::vector<End> ends(text.size() + 1);
    for (size_t at = 0; at < text.size();) {
        const size_t size = code_point_size(text, at);
        const double before = ends[at].score;
        bool is_token = false;
        trie_.prefixes(text.substr(at), [&](int32_t id, size_t length) {
            ends[at + length].offer(before + scores_[static_cast<size_t>(id)], at, id);
            is_token = is_token || length == size;
        });
        if (!is_token) ends[at + size].offer(before + unknown_score_, at, kUnknown);
        at += size;
    }
    // Backwards from the end; a run of unknown characters is one piece.
    std::vector<std::string_view> pieces;
    size_t run_end = 0;
    const auto is_unknown = [&](const End& end) {
        return end.id == kUnknown || (options_.unknown && end.id == *options_.unknown);
    };
    for (size_t end = text.size(); end > 0; end = ends[end].start) {
        const size_t start = ends[end].start;
        const bool unknown = is_unknown(ends[end]);
        if (unknown && run_end == 0) run_end = end;
        const bool run_goes_on = unknown && start > 0 && is_unknown(ends[start]);
        if (run_goes_on) continue;
        pieces.push_back(text.substr(start, (unknown ? run_end : end) - start));
        run_end = 0;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) append(*piece, out);
}

}  // namespace refold
