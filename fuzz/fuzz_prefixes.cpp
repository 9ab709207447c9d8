// Fuzzes files of saved prefixes: for any bytes, sequences whose tokens the model has and whose keys and
// values have the right size are known again, or the file is refused with refold::Error.
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "generation/saved_prefixes.h"
#include "scratch.h"
#include "target.h"

namespace {

// Has room, and takes keys and values of two bytes for a token.
class OnlyRoom : public refold::Engine {
public:
    OnlyRoom() : Engine(capabilities_of()) {}
    std::optional<int32_t> open(int64_t tokens) override {
        if (tokens < 1 || tokens > capabilities().context) abort();
        if (used_ + tokens > capabilities().kv_tokens) return std::nullopt;
        used_ += tokens;
        return next_++;
    }
    void close(int32_t) override {}
    void truncate(int32_t, int64_t) override {}
    void copy(int32_t, int32_t, int64_t) override {}
    void share(int32_t, int64_t, int32_t) override {}
    refold::StepOutput step(const refold::StepInput&) override { return {}; }
    int64_t kv_tokens_used() const override { return used_; }
    refold::EngineMemory memory() const override { return {}; }
    uint64_t saved_bytes(int64_t tokens) const override { return static_cast<uint64_t>(2 * tokens); }
    void save_tokens(int32_t, int64_t tokens,
                     const std::function<void(std::span<const std::byte>)>& write) const override {
        write(std::vector<std::byte>(saved_bytes(tokens)));
    }
    void load_tokens(int32_t, int64_t tokens, std::span<const std::byte> saved) override {
        if (saved.size() != saved_bytes(tokens)) abort();
    }

private:
    static refold::Capabilities capabilities_of() {
        refold::Capabilities out;
        out.context = 16;
        out.kv_tokens = 40;
        out.n_vocab = 100;
        return out;
    }
    int64_t used_ = 0;
    int32_t next_ = 0;
};

refold::PrefixFile file() { return {refold::scratch() / "prefixes", "a key"}; }

constexpr std::string_view kWords[] = {"refold prefixes 1\n", "a key",
                                       std::string_view("\2\0\0\0\0\0\0\0", 8),
                                       std::string_view("\x10\0\0\0\0\0\0\0", 8), "\xFF\xFF\xFF\x7F"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    write_bytes(file().path, input);
    return reads([] {
        OnlyRoom engine;
        SharedSequences sequences(engine, SharedSequences::Rooms::exact);
        use(load_prefixes(file(), sequences));
        for (const SharedSequences::Sequence* sequence : sequences.kept())
            for (const int32_t token : sequence->tokens)
                if (token < 0 || token >= engine.capabilities().n_vocab) abort();
    });
}

std::vector<std::string> refold::fuzz_seeds() {
    OnlyRoom engine;
    SharedSequences sequences(engine, SharedSequences::Rooms::exact);
    for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{1, 2, 3}, {99, 98, 97, 96}, {5}})
        sequences.restore(tokens, std::vector<std::byte>(engine.saved_bytes(std::ssize(tokens))));
    save_prefixes(file(), sequences);
    return {read_bytes(file().path)};
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
