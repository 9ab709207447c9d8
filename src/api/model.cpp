#include "refold/model.h"

#include <algorithm>

#include "api/impl.h"
#include "core/error.h"
#include "engine/single_sequence.h"
#include "generation/draft_model.h"
#include "hub/resolve.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/save.h"
#include "model/stock.h"
#include "refold/refold.h"

namespace refold {

std::string version() { return REFOLD_VERSION; }

ModelCost cost_of(const Cost& cost) {
    return {cost.parameters, cost.bytes, cost.kv_bytes_per_token, cost.flops_per_token};
}

ModelInfo info_of(const Model& model) {
    const ModelConfig& c = model.config;
    const Accounting costs = account(model);
    const auto layers = static_cast<int64_t>(model.topology.layers.size());
    ModelInfo info;
    info.architecture = c.family;
    info.causal = c.causal;
    info.layers = layers;
    info.loops = std::max<int64_t>(model.topology.loops, 1);
    info.stored_layers = layers / info.loops;
    info.n_embd = c.n_embd;
    info.n_head = c.n_head;
    info.n_head_kv = c.n_head_kv;
    info.n_vocab = c.n_vocab;
    info.context_length = c.context_length;
    info.tensors = static_cast<int64_t>(model.tensors.size());
    info.shares = model.has_sharing();
    info.stored = cost_of(costs.model);
    info.without_sharing = cost_of(costs.dense);
    return info;
}

ModelFile::ModelFile(const std::string& model) : impl_(std::make_unique<Impl>()) {
    impl_->path = resolve_model(model);
    impl_->model = load_model(impl_->path);
}
ModelFile::~ModelFile() = default;
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;

const std::string& ModelFile::path() const { return impl_->path; }
ModelInfo ModelFile::info() const { return info_of(impl_->model); }

void ModelFile::save(const std::string& path, bool overwrite, const Control& control) const {
    const Controlled controlled(control);
    save_model(impl_->model, path, overwrite);
}
void ModelFile::export_gguf(const std::string& path, bool overwrite, const Control& control) const {
    const Controlled controlled(control);
    save_model(for_stock(impl_->model).model, path, overwrite);
}
void ModelFile::export_hf(const std::string& directory, bool overwrite, const Control& control) const {
    const Controlled controlled(control);
    HfExportOptions options;
    options.overwrite = overwrite;
    save_hf_model(impl_->model, directory, options);
}

ModelInfo inspect(const std::string& model) { return ModelFile(model).info(); }

namespace {

EngineOptions engine_options(const LanguageModelOptions& o) {
    if (o.sequences < 1) fail(ErrorCode::usage, "model", "sequences must be at least 1, got {}", o.sequences);
    EngineOptions options;
    options.threads = o.threads;
    options.context = o.context;
    options.f32 = o.f32;
    options.sequences = o.sequences;
    return options;
}

}  // namespace

LanguageModel::Impl::Impl(const Model& model, const std::string& path, const LanguageModelOptions& options)
    : info(info_of(model)), tokenizer(path), draft_tokens(options.draft_tokens) {
    if (!info.causal) {
        fail(ErrorCode::unsupported, "model", "'{}' is an encoder, it generates no text - use Encoder",
             info.architecture);
    }
    EngineOptions engine_options = refold::engine_options(options);
    if (!obstacle_to_several_sequences(model, engine_options).empty()) engine_options.sequences = 1;
    engine = make_engine(model, engine_options);
    if (options.draft_model.empty()) return;
    if (draft_tokens < 1)
        fail(ErrorCode::usage, "model", "draft_tokens must be at least 1, got {}", draft_tokens);
    draft = load_draft_model(resolve_model(options.draft_model), engine_options, *engine, tokenizer);
}

LanguageModel::LanguageModel(const std::string& model, const LanguageModelOptions& options)
    : LanguageModel(ModelFile(model), options) {}
LanguageModel::LanguageModel(const ModelFile& model, const LanguageModelOptions& options)
    : impl_(std::make_unique<Impl>(model.impl().model, model.impl().path, options)) {}
LanguageModel::~LanguageModel() = default;
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;

const ModelInfo& LanguageModel::info() const { return impl_->info; }
const Tokenizer& LanguageModel::tokenizer() const { return impl_->tokenizer; }
int64_t LanguageModel::context() const { return impl_->engine->capabilities().context; }

std::vector<float> LanguageModel::logits(std::span<const int32_t> tokens) {
    SingleSequence sequence(*impl_->engine);
    const auto logits = sequence.evaluate(tokens);
    return {logits.begin(), logits.end()};
}

std::vector<float> LanguageModel::all_logits(std::span<const int32_t> tokens, std::stop_token stop) {
    SingleSequence sequence(*impl_->engine);
    std::vector<float> out;
    out.reserve(tokens.size() * static_cast<size_t>(sequence.capabilities().n_vocab));
    sequence.evaluate_all(tokens, [&](size_t, std::span<const float> rows) {
        if (stop.stop_requested()) fail(ErrorCode::interrupted, "model", "cancelled");
        out.insert(out.end(), rows.begin(), rows.end());
    });
    return out;
}

}  // namespace refold
