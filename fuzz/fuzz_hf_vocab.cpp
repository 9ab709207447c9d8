// Fuzzes Hugging Face tokenizer files: for any bytes, read_hf_vocabulary() returns a vocabulary or throws
// refold::Error, and a returned vocabulary can encode, be written and be read again.
#include <filesystem>
#include <string>
#include <vector>

#include "bundle.h"
#include "scratch.h"
#include "target.h"
#include "vocab/hf_vocab.h"
#include "vocab/pipeline.h"

namespace {

namespace fs = std::filesystem;

using refold::Bundle;
using refold::GgufMetadata;
using refold::HfPipeline;

constexpr int64_t kRows = 1000;
constexpr const char* kNames[] = {
    "tokenizer.json", "tokenizer.model",        "vocab.json", "merges.txt", "tokenizer_config.json",
    "vocab.txt",      "special_tokens_map.json"};

void put(const fs::path& folder, const Bundle& files) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const char* name : kNames) {
        const auto found = files.find(name);
        if (found != files.end()) refold::write_bytes(folder / name, found->second);
    }
}

void run(const GgufMetadata& metadata) {
    const HfPipeline pipeline(metadata, "fuzz");
    const auto bytes = [](const std::string& text, std::vector<int32_t>& ids) {
        ids.insert(ids.end(), text.size(), 0);
    };
    static const std::string texts[] = {"", " a  b", "Hello <s>\xC3\xA9\xE4\xBD\xA0\xFF</s> [CLS] <mask>",
                                        "\xE2\x96\x81x"};
    for (const std::string& text : texts) {
        for (const bool special : {false, true}) {
            const std::vector<int32_t> ids = pipeline.encode(text, special, bytes);
            refold::use(pipeline.decode(pipeline.post_processor().apply(ids), special).size());
            for (const int32_t id : ids) refold::use(pipeline.piece(id, special).size());
            refold::use(pipeline.post_processor().apply(ids, ids).ids.size());
        }
    }
}

// The files of a folder; larger ones take too long.
Bundle files_of(const fs::path& folder) {
    constexpr size_t kMost = 16 << 10;
    Bundle files;
    for (const char* name : kNames) {
        std::string bytes = refold::read_bytes(folder / name);
        if (!bytes.empty() && bytes.size() <= kMost) files[name] = std::move(bytes);
    }
    return files;
}

constexpr std::string_view kWords[] = {"null",
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

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const fs::path in = scratch() / "in", out = scratch() / "out";
    put(in, unbundled(input));
    GgufMetadata metadata;
    bool found = false;
    if (!reads([&] { found = read_hf_vocabulary(in, kRows, metadata); }) || !found) return false;
    // Refused are bytes without a token, and tokens that only one of the two formats distinguishes.
    reads([&] {
        run(metadata);
        put(out, {});
        write_hf_vocabulary(metadata, out);
        GgufMetadata again;
        read_hf_vocabulary(out, kRows, again);
    });
    return true;
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (const auto& entry : fs::directory_iterator(REFOLD_FIXTURES "/tokenizers")) {
        Bundle files = files_of(entry.path());
        if (files.empty()) continue;
        if (fuzz_one(bundled(files))) seeds.push_back(bundled(files));
        // Files after tokenizer.json are read only without it.
        if (files.erase("tokenizer.json") > 0 && fuzz_one(bundled(files))) seeds.push_back(bundled(files));
    }
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
