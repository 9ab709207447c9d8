// A model as a Hugging Face directory that transformers loads.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/model.h"

namespace refold {

struct HfExportOptions {
    bool overwrite = false;
    // Element type of all tensors: F32, F16 or BF16. Not given: as stored (norms as the checkpoint had them);
    // float32 for what is quantized, which float32 holds exactly.
    std::optional<DType> type;
    uint64_t shard_bytes = 5'000'000'000;           // transformers' default
    std::map<std::string, std::string> texts = {};  // further files by name, e.g. README.md
};

// The model card, and the one that the source had where refold's takes its name.
constexpr const char *kReadme = "README.md", *kSourceReadme = "README.source.md";

struct HfExport {
    uint64_t bytes = 0;  // of the tensors
    size_t tensors = 0, files = 0;
};

// Writes config.json, model.safetensors (or shards with an index) and the tokenizer's files: those of the
// directory that the model came from, else rebuilt from its vocabulary. Sharing is materialized; a model that
// came from a directory unchanged goes out with the same tensors, bit for bit. Atomic; with `overwrite` the
// files stay that refold has not written (core/output_folder.h). The model's own folder may be the output:
// then its configuration, tensors and README.md are replaced, which becomes README.source.md. Throws
// Error(unsupported) naming what the family's configuration cannot express.
HfExport save_hf_model(const Model& model, const std::string& folder, const HfExportOptions& options);

// The tokenizer's files alone, into an existing folder.
void save_hf_tokenizer(const Model& model, const std::string& folder);

}  // namespace refold
