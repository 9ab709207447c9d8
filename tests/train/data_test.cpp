#include "train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "core/error_of.h"
#include "core/progress.h"
#include "core/temp_folder.h"
#include "train/token_file.h"
#include "train/tokenizers.h"

namespace refold {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Data : public testing::Test {
protected:
    Data() {
        set_progress_style(ProgressStyle::none);
        setenv("REFOLD_CACHE", (folder_ / "cache").c_str(), 1);
    }
    ~Data() override { unsetenv("REFOLD_CACHE"); }

    TrainDataOptions options(const std::string& text, int64_t context, const std::string& name = "a.txt") {
        write_all(folder_ / name, text);
        return {.files = {folder_ / name}, .context = context, .held_out = 0, .folder = folder_ / "run"};
    }
    TrainData open(const TrainDataOptions& options) { return TrainData::open(options, readable_tokenizer()); }

    TempFolder folder_;
};

std::vector<std::string> texts(const TrainData& data) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < data.size(); ++i) out.push_back(as_text(data[i].tokens));
    return out;
}
std::vector<std::string> held_out_texts(const TrainData& data) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < data.held_out_size(); ++i) out.push_back(as_text(data.held_out(i).tokens));
    return out;
}

TEST_F(Data, DocumentsArePackedAndCutWithOneTokenInCommon) {
    const TrainData data = open(options("{\"text\": \"abcde\"}\n{\"text\": \"fg\"}\n", 3, "a.jsonl"));
    EXPECT_THAT(texts(data), ElementsAre("^abc", "cde$", "$^fg"));
    EXPECT_EQ(data.tokens(), 11);
    EXPECT_EQ(data.documents(), 2);
    EXPECT_EQ(data.scored_tokens(), 9);
    EXPECT_THAT(data[2].scored, ElementsAre(1, 0, 1, 1));
}

TEST_F(Data, SequencesWithoutScoredTokensAreLeftOut) {
    const std::string line = R"({"input": ")" + std::string(40, 'x') + R"(", "output": "abcdefgh"})";
    const TrainData data = open(options(line, 4, "a.jsonl"));
    std::string all;
    for (const auto& text : texts(data)) all += text;
    EXPECT_THAT(all, AllOf(HasSubstr("bcdef"), testing::Not(HasSubstr("xxxx"))));
    TrainDataOptions everything = options(line, 4, "a.jsonl");
    everything.responses_only = false;
    EXPECT_GT(open(everything).size(), data.size());
}

// The first token of a sequence is not predicted.
TEST_F(Data, ASequenceIsNotThereForItsFirstToken) {
    // Documents of 30 tokens whose last three are scored: the 18th sequence begins with the last token of the
    // fourth.
    const std::string line = R"({"input": "", "output": "ab"})"
                             "\n";
    const TrainData data = open(options(line + line + line + line + line, 7, "a.jsonl"));
    EXPECT_EQ(data.tokens(), 150);
    for (int64_t i = 0; i < data.size(); ++i)
        EXPECT_THAT(data[i].scored.subspan(1), testing::Contains(1)) << as_text(data[i].tokens);
}

TEST_F(Data, EveryKthSequenceIsHeldOut) {
    TrainDataOptions o = options("abcdefghijklmnopqrs", 2);  // 21 tokens: 10 sequences
    o.held_out = 0.3;
    EXPECT_THAT(held_out_texts(open(o)), ElementsAre("bcd", "jkl", "pqr"));
    EXPECT_EQ(open(o).size(), 7);
    o.held_out = 0.01;
    EXPECT_THAT(held_out_texts(open(o)), ElementsAre("jkl"));
    o.held_out = 0;
    EXPECT_EQ(open(o).held_out_size(), 0);
}

TEST_F(Data, TokensAreReadAgainAsLongAsTheyAreOfTheSameText) {
    int calls = 0;
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.tokens = [&](std::string_view text) {
        ++calls;
        return bytes_as_tokens(text);
    };
    TrainDataOptions o = options("abcdefghij", 2);
    const std::string first = TrainData::open(o, tokenizer).identity();
    EXPECT_EQ(TrainData::open(o, tokenizer).identity(), first);
    EXPECT_EQ(calls, 1);
    o.context = 3;  // the same token file
    EXPECT_NE(TrainData::open(o, tokenizer).identity(), first);
    EXPECT_EQ(calls, 1);
    o = options("abcdefghik", 2);
    EXPECT_NE(TrainData::open(o, tokenizer).identity(), first);
    EXPECT_EQ(calls, 2);
    tokenizer.identity = "another";
    EXPECT_NE(TrainData::open(o, tokenizer).identity(), first);
    EXPECT_EQ(calls, 3);
    o.responses_only = false;
    TrainData::open(o, tokenizer);
    EXPECT_EQ(calls, 4);
}

TEST_F(Data, OneOfSeveralWritesTheFile) {
    const TrainDataOptions o = options("abcdefghij", 2);
    std::atomic<int> calls = 0;
    std::thread other;
    TrainTokenizer tokenizer = readable_tokenizer();
    tokenizer.tokens = [&](std::string_view text) {
        if (++calls == 1) {
            other = std::thread([&] { TrainData::open(o, tokenizer); });
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        return bytes_as_tokens(text);
    };
    TrainData::open(o, tokenizer);
    other.join();
    EXPECT_EQ(calls, 1);
}

TEST(DataInMemory, ArrivesAsItIs) {
    const TrainData data = TrainData::of({{1, 2, 3}, {4, 5, 6}}, {{7, 8, 9}}, "identity");
    EXPECT_EQ(data.context(), 2);
    ASSERT_EQ(data.size(), 2);
    ASSERT_EQ(data.held_out_size(), 1);
    EXPECT_THAT(data[1].tokens, testing::ElementsAre(4, 5, 6));
    EXPECT_THAT(data.held_out(0).tokens, testing::ElementsAre(7, 8, 9));
    EXPECT_THAT(data.held_out(0).scored, testing::Each(1));
    EXPECT_EQ(data.scored_tokens(), 6);
    EXPECT_EQ(data.identity(), "identity");
    EXPECT_ANY_THROW(TrainData::of({{1, 2, 3}, {4, 5}}, {}, ""));
}

TEST_F(Data, TooLittleTextSaysHowMuchThereIs) {
    EXPECT_THAT(
        error_of([&] { open(options("abc", 4)); }),
        AllOf(HasSubstr("too little text"), HasSubstr("has 5 tokens in 1 documents"), HasSubstr("gives 1")));
    EXPECT_THAT(error_of([&] { open(options("", 4)); }), HasSubstr("has 0 tokens"));
    EXPECT_THAT(error_of([&] { open(options("", 1)); }), HasSubstr("has 0 tokens"));
}

TEST_F(Data, BadOptionsAndMissingFiles) {
    TrainDataOptions o = options("abcdefgh", 2);
    o.files.push_back(folder_ / "none.txt");
    EXPECT_THAT(error_of([&] { open(o); }, ErrorCode::io), HasSubstr("none.txt"));
    o.files.clear();
    EXPECT_THAT(error_of([&] { open(o); }, ErrorCode::usage), HasSubstr("no files"));
    o = options("abcdefgh", 0);
    EXPECT_THAT(error_of([&] { open(o); }, ErrorCode::usage), HasSubstr("context of 0"));
    o = options("abcdefgh", 2);
    o.held_out = 1;
    EXPECT_THAT(error_of([&] { open(o); }, ErrorCode::usage), HasSubstr("1 of the sequences held out"));
    o = options("{\"text\": \"a\"}\n{\"tex\": 1}", 2, "a.jsonl");
    EXPECT_THAT(error_of([&] { open(o); }), HasSubstr("a.jsonl', line 2"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run/tokens.bin"));
}

class Tokens : public testing::Test {
protected:
    std::string written() {
        TokenFileWriter writer(path_, identity_);
        writer.add({{1, 2, 3}, {}});
        writer.add({{4, 5}, {0, 1}}, false);
        writer.add({{6}, {0}});
        writer.commit();
        return read_all(path_);
    }
    std::string problem(const std::string& bytes) {
        write_all(path_, bytes);
        return error_of([&] { TokenFile::open(path_, identity_); });
    }

    TempFolder folder_;
    std::string path_ = folder_ / "tokens.bin", identity_ = std::string(64, 'a');
};

TEST_F(Tokens, AreReadAsTheyWereWritten) {
    written();
    const auto file = TokenFile::open(path_, identity_);
    ASSERT_TRUE(file);
    EXPECT_THAT(file->tokens(), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(file->scored(), ElementsAre(1, 1, 1, 0, 1, 0));
    EXPECT_EQ(file->documents(), 2U);
}

TEST_F(Tokens, OfAnotherTextOrVersionAreNone) {
    std::string bytes = written();
    EXPECT_FALSE(TokenFile::open(path_, std::string(64, 'b')));
    EXPECT_FALSE(TokenFile::open(folder_ / "none", identity_));
    bytes[8] = 9;
    write_all(path_, bytes);
    EXPECT_FALSE(TokenFile::open(path_, identity_));
}

TEST_F(Tokens, FilesThatLieAreRefused) {
    const std::string bytes = written();
    EXPECT_THAT(problem(bytes.substr(0, 100)), AllOf(HasSubstr("100 bytes"), HasSubstr("remove it")));
    EXPECT_THAT(problem(bytes.substr(0, bytes.size() - 1)), HasSubstr("its end is missing"));
    EXPECT_THAT(problem("X" + bytes.substr(1)), HasSubstr("begins in another way"));
    for (const size_t at : {size_t{0}, size_t{7}}) {  // bytes of the number of tokens
        std::string lying = bytes;
        lying[bytes.size() - 24 + at] = '\x70';
        EXPECT_THAT(problem(lying), HasSubstr("got 32 bytes for"));
    }
}

TEST(Order, IsAPermutationOfEachEpoch) {
    SequenceOrder order(7, 3);
    std::vector<std::vector<int64_t>> epochs(3);
    for (int64_t n = 0; n < 21; ++n) epochs[static_cast<size_t>(n / 7)].push_back(order(n));
    for (const auto& epoch : epochs) EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 7U);
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_NE(epochs[1], epochs[2]);
}

// The order must be the same on every machine, or a resumed run would differ.
TEST(Order, IsTheSameEverywhere) {
    SequenceOrder order(8, 1);
    std::vector<int64_t> first;
    for (int64_t n = 0; n < 8; ++n) first.push_back(order(n));
    EXPECT_THAT(first, ElementsAre(7, 6, 0, 5, 2, 3, 1, 4));
}

TEST(Order, DependsOnTheNumberAlone) {
    SequenceOrder all(100, 42), resumed(100, 42), other(100, 43);
    std::vector<int64_t> a, b;
    for (int64_t n = 0; n < 250; ++n) a.push_back(all(n));
    for (int64_t n = 130; n < 250; ++n) EXPECT_EQ(resumed(n), a[static_cast<size_t>(n)]);
    EXPECT_EQ(resumed(7), a[7]);  // and back
    for (int64_t n = 0; n < 100; ++n) b.push_back(other(n));
    EXPECT_NE(b, std::vector<int64_t>(a.begin(), a.begin() + 100));
    SequenceOrder one(1, 0);
    EXPECT_EQ(one(12345), 0);
}

}  // namespace
}  // namespace refold
