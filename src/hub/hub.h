// Models and data sets of a Hugging Face hub, in the cache that huggingface_hub also uses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace refold {

struct HubSpec {
    std::string repo;               // "org/name"
    std::string revision = "main";  // branch, tag or commit
    std::string file_or_quant{};    // selects a GGUF file: "", "Q4_K_M", or its path in the repository
    bool dataset = false;           // a data set repository; file_or_quant is then the path of one file
};

// Parses "org/name[@revision][:QUANT]"; nothing for any other text.
std::optional<HubSpec> parse_hub_spec(const std::string& text);

// The cache that huggingface_hub would use: $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub,
// $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub.
std::filesystem::path hub_cache();

struct HubOptions {
    int attempts = 5;          // consecutive attempts without progress before giving up
    double retry_delay = 0.5;  // seconds before the second attempt, doubled before each further one
    int stall_seconds = 30;    // an attempt fails after this time without a byte
};

struct HubModel {
    std::string path;    // the snapshot's folder, or the (first) .gguf file
    std::string commit;  // 40 hexadecimal digits
    uint64_t files = 0;  // number of the model's files
    uint64_t bytes = 0;  // their total size
};

// Downloads a model into the cache: configuration, tokenizer and safetensors of a repository, or one GGUF
// file (`file_or_quant`, or the only one of a repository without safetensors). Files in the cache are not
// fetched again, and downloads that an interrupt or a broken connection cut short are resumed. Every file is
// checked by size and hash. Environment: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_OFFLINE, and
// the proxy variables. Throws Error(usage) for a missing or ambiguous model, Error(io) for the network, the
// disk and missing access rights, Error(input) for malformed responses, Error(unsupported) for a repository
// without such a model, Error(interrupted).
HubModel hub_pull(const HubSpec& spec, const HubOptions& options = {});

// The path of one file of a data set repository, from the cache or downloaded as above. Throws as above.
std::string hub_dataset_file(const std::string& repo, const std::string& path,
                             const HubOptions& options = {});

// Fetches the rows of a data set that is published in a format that refold does not read (Parquet), page by
// page from the hub's data set server, and keeps them as JSON lines in cache_directory()/datasets. Returns
// the file's path. Environment: HF_DATASETS_SERVER (default https://datasets-server.huggingface.co),
// HF_HUB_OFFLINE, HF_TOKEN. Throws Error(usage) for a missing data set, Error(io) and Error(input) as above.
std::string hub_dataset_rows(const std::string& repo, const std::string& config, const std::string& split,
                             const HubOptions& options = {});

// The model when the cache holds all its files. Never uses the network. Throws Error(usage) when several
// cached GGUF files match.
std::optional<HubModel> find_cached(const HubSpec& spec);

}  // namespace refold
