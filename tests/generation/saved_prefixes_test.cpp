#include "generation/saved_prefixes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/code_of.h"
#include "core/files.h"
#include "core/temp_folder.h"
#include "model/load.h"

namespace refold {
namespace {

const std::string kSavedModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

// A server's KV cache.
class Cache {
public:
    explicit Cache(int64_t kv_tokens = 256)
        : engine_(make_engine(
              load_model(kSavedModel),
              {.threads = 1, .context = 64, .f32 = true, .sequences = 0, .kv_tokens = kv_tokens})),
          sequences(*engine_, SharedSequences::Rooms::exact) {}

    // Runs the tokens that are not known and gives the logits of the last one.
    std::vector<float> run(const std::vector<int32_t>& tokens) {
        SharedSequences::Sequence& place = *sequences.begin(tokens, tokens.size(), tokens.size() - 1);
        known = place.done;
        std::vector<Row> rows;
        for (size_t i = place.done; i < tokens.size(); ++i)
            rows.push_back({.sequence = place.id,
                            .position = static_cast<int64_t>(i),
                            .token = tokens[i],
                            .logits = i + 1 == tokens.size()});
        const auto logits = engine_->step({.rows = rows}).logits;
        place.done = tokens.size();
        sequences.end(place);
        return {logits.begin(), logits.end()};
    }

private:
    std::unique_ptr<Engine> engine_;

public:
    SharedSequences sequences;
    size_t known = 0;
};

class SavedPrefixes : public testing::Test {
protected:
    size_t load(Cache& cache) { return load_prefixes(file, cache.sequences); }
    void expect_refused(const std::string& text) {
        Cache cache;
        EXPECT_EQ(code_of([&] { load(cache); }, text), ErrorCode::input);
    }

    const TempFolder folder;
    const PrefixFile file{folder / "model.prefixes", "key"};
    const std::vector<int32_t> first{3, 4, 5, 6, 7, 8}, second{3, 4, 9, 9}, third{12, 13, 14, 15, 16};
};

TEST_F(SavedPrefixes, AreKnownAgain) {
    std::vector<float> expected;
    {
        Cache cache;
        EXPECT_EQ(load(cache), 0U);  // there is no file
        cache.run(first);
        cache.run(second);
        expected = cache.run(third);
        EXPECT_EQ(save_prefixes(file, cache.sequences), first.size() + second.size() + third.size());
    }
    struct stat status {};
    ASSERT_EQ(stat(file.path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
    Cache cache;
    EXPECT_EQ(load(cache), first.size() + second.size() + third.size());
    EXPECT_EQ(cache.run(third), expected);
    EXPECT_EQ(cache.known, third.size() - 1);
    cache.run(first);
    EXPECT_EQ(cache.known, first.size() - 1);
    // A smaller cache has those that were used last.
    Cache small(10);
    EXPECT_EQ(load(small), second.size() + third.size());
    EXPECT_EQ(small.sequences.known(first, 64), 2U);
    EXPECT_EQ(small.sequences.known(third, 64), third.size());
    // A newest one that is too long for a cache does not keep others out.
    cache.run(std::vector<int32_t>(60, 7));
    save_prefixes(file, cache.sequences);
    Cache smaller(12);
    EXPECT_EQ(load(smaller), first.size() + third.size());
    // Nothing to keep: what is there stays.
    EXPECT_EQ(save_prefixes(file, Cache().sequences), 0U);
    EXPECT_TRUE(std::filesystem::exists(file.path));
}

TEST_F(SavedPrefixes, AFileOfAnotherKindIsNotReplaced) {
    write_file(file.path, "mine");
    Cache cache;
    cache.run(first);
    EXPECT_EQ(code_of([&] { save_prefixes(file, cache.sequences); }, "is no file of prefixes"),
              ErrorCode::input);
    EXPECT_EQ(read_all(file.path), "mine");
    for (const char* version : {"refold prefixes 0\n", "refold prefixes 1\n"}) {
        write_file(file.path, version);
        EXPECT_EQ(save_prefixes(file, cache.sequences), first.size());
    }
}

TEST_F(SavedPrefixes, OthersAndDamagedOnesAreRefused) {
    {
        Cache cache;
        cache.run(second);
        save_prefixes(file, cache.sequences);
    }
    const std::string whole = read_all(file.path);
    for (size_t size = 0; size < whole.size(); size += size < 64 ? 1 : 97) {
        write_file(file.path, whole.substr(0, size));
        expect_refused(size < 18 ? "is of another model" : "ends within");
    }
    write_file(file.path, whole + "x");
    expect_refused("goes on after its end");
    std::string changed = whole;
    changed[changed.find("key")] = 'K';
    write_file(file.path, changed);
    expect_refused("is of another model");
    const size_t tokens = whole.find("key") + 3 + sizeof(uint64_t), ids = tokens + sizeof(uint64_t);
    for (const auto& [at, text] :
         {std::pair(tokens, "that the model does not have"), std::pair(tokens + 6, "ends within"),
          std::pair(ids + 3, "that the model does not have")}) {
        changed = whole;
        changed[at] = '\x7f';
        write_file(file.path, changed);
        expect_refused(text);
    }
}

}  // namespace
}  // namespace refold
