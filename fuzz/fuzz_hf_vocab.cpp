// Fuzzes Hugging Face tokenizer files: for any bytes, read_hf_vocabulary() returns a vocabulary or throws
// refold::Error, and a returned vocabulary can encode, be written and be read again.
//
// With libFuzzer build with -DREFOLD_LIBFUZZER -fsanitize=fuzzer,address,undefined; the first byte of an
// input selects a file of the folder. Otherwise the main() below mutates the files of given folders,
// deterministically:
//     refold_fuzz_hf_vocab [--iterations N] [--seed N] FOLDER...
// An input that crashes is left in $TMPDIR/refold-fuzz-hf-vocab-crash.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "core/error.h"
#include "fuzzing.h"
#include "vocab/hf_vocab.h"
#include "vocab/pipeline.h"

namespace {

namespace fs = std::filesystem;

using refold::Error;
using refold::GgufMetadata;
using refold::HfPipeline;

using Files = std::map<std::string, std::string>;  // name -> bytes

constexpr int64_t kRows = 1000;
constexpr const char* kNames[] = {
    "tokenizer.json", "tokenizer.model",        "vocab.json", "merges.txt", "tokenizer_config.json",
    "vocab.txt",      "special_tokens_map.json"};

// Reads must not be optimized away.
volatile size_t g_sink = 0;

fs::path scratch() {
    static const fs::path path =
        fs::temp_directory_path() / ("refold-fuzz-hf-vocab-" + std::to_string(getpid()));
    return path;
}

void put(const fs::path& folder, const Files& files) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const auto& [name, bytes] : files) {
        std::ofstream out(folder / name, std::ios::binary);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
}

void use(const GgufMetadata& metadata) {
    const HfPipeline pipeline(metadata, "fuzz");
    const auto bytes = [](const std::string& text, std::vector<int32_t>& ids) {
        ids.insert(ids.end(), text.size(), 0);
    };
    static const std::string texts[] = {"", " a  b", "Hello <s>\xC3\xA9\xE4\xBD\xA0\xFF</s> [CLS] <mask>",
                                        "\xE2\x96\x81x"};
    for (const std::string& text : texts) {
        for (const bool special : {false, true}) {
            const std::vector<int32_t> ids = pipeline.encode(text, special, bytes);
            g_sink = g_sink + pipeline.decode(pipeline.post_processor().apply(ids), special).size();
            for (const int32_t id : ids) g_sink = g_sink + pipeline.piece(id, special).size();
            g_sink = g_sink + pipeline.post_processor().apply(ids, ids).ids.size();
        }
    }
}

bool run_one(const Files& files) {
    put(scratch() / "in", files);
    GgufMetadata metadata;
    try {
        if (!refold::read_hf_vocabulary(scratch() / "in", kRows, metadata)) return false;
    } catch (const Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
    try {
        use(metadata);
        put(scratch() / "out", {});
        refold::write_hf_vocabulary(metadata, scratch() / "out");
        GgufMetadata again;
        refold::read_hf_vocabulary(scratch() / "out", kRows, again);
    } catch (const Error& error) {
        // Bytes without a token, and tokens that only one of the two formats distinguishes.
        if (error.code() != refold::ErrorCode::unsupported && error.code() != refold::ErrorCode::input) throw;
    }
    return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    Files files{{"tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})"},
                {"merges.txt", "#version: 0.2\n"}};
    files[kNames[data[0] % std::size(kNames)]] =
        std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
    run_one(files);
    return 0;
}

#ifndef REFOLD_LIBFUZZER

namespace {

constexpr size_t kMaxSeed = 64 << 10;

std::vector<Files> read_seeds(const fs::path& folder) {
    Files all;
    for (const char* name : kNames) {
        std::ifstream in(folder / name, std::ios::binary);
        std::string bytes{std::istreambuf_iterator<char>(in), {}};
        if (!bytes.empty() && bytes.size() <= kMaxSeed) all[name] = bytes;
    }
    if (all.empty()) return {};
    std::vector<Files> seeds{all};
    // Files after tokenizer.json are read only without it.
    if (all.erase("tokenizer.json") > 0) seeds.push_back(all);
    return seeds;
}

class Mutator {
public:
    Mutator(const std::vector<Files>& seeds, uint64_t number) : seeds_(seeds), random_(number) {}

    Files next() {
        Files files = seeds_[below(seeds_.size())];
        const size_t changes = 1 + below(below(4) == 0 ? 8 : 2);
        for (size_t i = 0; i < changes; ++i) {
            auto file = files.begin();
            std::advance(file, below(files.size()));
            if (!file->second.empty()) change(file->second);
        }
        return files;
    }

private:
    size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

    // Replaces a piece of text by a word that readers know.
    std::string word() {
        static const char* const words[] = {"null",
                                            "true",
                                            "-1",
                                            "0",
                                            "1e999",
                                            "\"\"",
                                            "{}",
                                            "[]",
                                            "999",
                                            "4294967296",
                                            "[UNK]",
                                            "<s>",
                                            "\"Regex\"",
                                            "\"NFC\"",
                                            "\"ByteLevel\"",
                                            "\"BPE\"",
                                            "\"WordPiece\"",
                                            " ",
                                            "\"Metaspace\"",
                                            "\\u0000",
                                            "\xE2\x96\x81",
                                            "\xFF\xFF\xFF\xFF\x7F"};
        return words[below(std::size(words))];
    }

    void change(std::string& bytes) {
        const size_t at = below(bytes.size());
        switch (below(6)) {
            case 0: bytes[at] ^= static_cast<char>(1 << below(8)); break;
            case 1: bytes.resize(at); break;
            case 2: bytes.erase(at, 1 + below(16)); break;
            case 3: bytes.replace(at, below(8), word()); break;
            case 4: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(64))); break;
            default: {  // replace a whole JSON value
                const size_t colon = bytes.find(": ", at);
                const size_t end = colon == std::string::npos ? colon : bytes.find_first_of(",}]\n", colon);
                if (end != std::string::npos) bytes.replace(colon + 2, end - colon - 2, word());
            }
        }
    }

    const std::vector<Files>& seeds_;
    std::mt19937_64 random_;
};

void keep_input() {
    std::error_code ignored;
    const fs::path crash = fs::temp_directory_path() / "refold-fuzz-hf-vocab-crash";
    fs::remove_all(crash, ignored);
    fs::rename(scratch() / "in", crash, ignored);
    fprintf(stderr, "refold_fuzz_hf_vocab: input left in %s\n", crash.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 1500);
    std::vector<Files> seeds;
    for (const std::string& folder : arguments.files)
        for (Files& seed : read_seeds(folder)) seeds.push_back(std::move(seed));
    if (seeds.empty()) {
        fprintf(stderr, "refold_fuzz_hf_vocab: no folder with tokenizer files is given\n");
        return 2;
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(keep_input);
#endif
    uint64_t accepted = 0;
    try {
        for (const Files& seed : seeds) run_one(seed);
        Mutator mutator(seeds, arguments.seed);
        for (uint64_t i = 0; i < arguments.iterations; ++i) accepted += run_one(mutator.next());
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_hf_vocab: not allowed to escape: %s\n", error.what());
        keep_input();
        return 1;
    }
    fs::remove_all(scratch());
    printf("refold_fuzz_hf_vocab: %llu inputs, %llu accepted, the others refused with a clear error\n",
           static_cast<unsigned long long>(arguments.iterations), static_cast<unsigned long long>(accepted));
    return 0;
}

#endif  // REFOLD_LIBFUZZER
