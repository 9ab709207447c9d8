#include "generation/saved_prefixes.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <ranges>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/files.h"

namespace refold {
namespace {

// The file: kMagic, the key, the number of sequences and, for each, those used longest ago first, its tokens
// and their keys and values. Before the key and the tokens stands how many bytes or tokens there are. Numbers
// are those of the machine, which the key names.
constexpr std::string_view kFormat = "refold prefixes ", kMagic = "refold prefixes 1\n";

bool begins_with(const MappedFile& file, std::string_view text) {
    return file.bytes().size() >= text.size() && memcmp(file.bytes().data(), text.data(), text.size()) == 0;
}

void write_number(AtomicFile& out, uint64_t number) { out.write(std::as_bytes(std::span(&number, 1))); }

class PrefixReader {
public:
    explicit PrefixReader(const MappedFile& file) : file_(file), left_(file.bytes()) {}

    std::span<const std::byte> bytes(uint64_t count) {
        if (count > left_.size())
            fail(ErrorCode::input, "prefixes", "'{}' ends within what it says that it has", file_.path());
        const auto out = left_.first(static_cast<size_t>(count));
        left_ = left_.subspan(static_cast<size_t>(count));
        return out;
    }
    uint64_t number() {
        uint64_t out = 0;
        std::memcpy(&out, bytes(sizeof out).data(), sizeof out);
        return out;
    }
    std::string_view text(uint64_t count) {
        const auto out = bytes(count);
        return {reinterpret_cast<const char*>(out.data()), out.size()};
    }
    std::vector<int32_t> tokens(int64_t n_vocab) {
        const uint64_t count = number();
        const auto all = bytes(count <= left_.size() ? count * sizeof(int32_t) : count);
        std::vector<int32_t> out(static_cast<size_t>(count));
        if (count > 0) std::memcpy(out.data(), all.data(), all.size());
        if (out.empty() ||
            std::ranges::any_of(out, [&](int32_t token) { return token < 0 || token >= n_vocab; }))
            fail(ErrorCode::input, "prefixes", "'{}' has tokens that the model does not have", file_.path());
        return out;
    }
    bool at_end() const { return left_.empty(); }

private:
    const MappedFile& file_;
    std::span<const std::byte> left_;
};

}  // namespace

size_t save_prefixes(const PrefixFile& file, const SharedSequences& sequences) {
    const std::vector<const SharedSequences::Sequence*> kept = sequences.kept();
    if (kept.empty()) return 0;
    if (std::filesystem::exists(file.path) && !begins_with(MappedFile(file.path), kFormat))
        fail(ErrorCode::input, "prefixes", "'{}' is no file of prefixes, so it is not replaced", file.path);
    AtomicFile out(file.path, true, AtomicFile::Readers::owner);
    out.write(kMagic);
    write_number(out, file.key.size());
    out.write(file.key);
    write_number(out, kept.size());
    size_t tokens = 0;
    for (const SharedSequences::Sequence* sequence : kept) {
        write_number(out, sequence->done);
        out.write(std::as_bytes(std::span(sequence->tokens).first(sequence->done)));
        sequences.engine().save_tokens(sequence->id, static_cast<int64_t>(sequence->done),
                                       [&](std::span<const std::byte> piece) { out.write(piece); });
        tokens += sequence->done;
    }
    out.commit();
    return tokens;
}

size_t load_prefixes(const PrefixFile& file, SharedSequences& sequences) {
    if (!std::filesystem::exists(file.path)) return 0;
    const MappedFile mapped(file.path);
    PrefixReader in(mapped);
    if (mapped.bytes().size() < kMagic.size() || in.text(kMagic.size()) != kMagic ||
        in.text(in.number()) != file.key)
        fail(ErrorCode::input, "prefixes", "'{}' is of another model, other options or another version",
             file.path);
    struct Saved {
        std::vector<int32_t> tokens;
        std::span<const std::byte> bytes;
    };
    const Engine& engine = sequences.engine();
    std::vector<Saved> all;
    for (uint64_t left = in.number(); left > 0; --left) {
        std::vector<int32_t> tokens = in.tokens(engine.capabilities().n_vocab);
        const auto bytes = in.bytes(engine.saved_bytes(std::ssize(tokens)));
        all.push_back({std::move(tokens), bytes});
    }
    if (!in.at_end()) fail(ErrorCode::input, "prefixes", "'{}' goes on after its end", file.path);
    size_t tokens = 0;
    for (Saved& saved : all | std::views::reverse) {
        const size_t count = saved.tokens.size();
        if (sequences.known(saved.tokens, count) == count) continue;  // a later one begins with it
        if (sequences.restore(std::move(saved.tokens), saved.bytes)) tokens += count;
    }
    return tokens;
}

}  // namespace refold
