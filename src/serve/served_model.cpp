#include "serve/served_model.h"

#include <algorithm>
#include <utility>

#include "serve/reply.h"

namespace refold {
namespace {

// Bytes of the longest token's text.
size_t longest_token(const Tokenizer& tokenizer) {
    size_t longest = 0;
    for (int32_t token = 0; token < tokenizer.size(); ++token)
        longest = std::max(longest, tokenizer.piece(token, true).size());
    return longest;
}

}  // namespace

ServedModel::ServedModel(Scheduler* the_scheduler, const Tokenizer& the_tokenizer, ModelInfo the_info,
                         EncoderQueue* the_encoder)
    : info(std::move(the_info)),
      scheduler(the_scheduler),
      encoder(the_encoder),
      tokenizer(the_tokenizer),
      chat(the_tokenizer, info.chat_template),
      limits{info.context, info.n_vocab, longest_token(the_tokenizer)},
      grammars(std::make_shared<GrammarCompiler>(the_tokenizer, info.n_vocab)) {}

static ModelInfo adapted_info(const ServedModel& base, std::string name) {
    ModelInfo out = base.info;
    out.parent = std::exchange(out.name, std::move(name));
    out.memory_bytes = 0;  // counted with the model
    return out;
}

ServedModel::ServedModel(const ServedModel& base, std::string name, int32_t the_adapter)
    : info(adapted_info(base, std::move(name))),
      scheduler(base.scheduler),
      encoder(nullptr),
      tokenizer(base.tokenizer),
      chat(base.tokenizer, info.chat_template),
      limits(base.limits),
      grammars(base.grammars),
      adapter(the_adapter) {}

ServedModel* ServedModel::named(const std::string& name) {
    if (name == info.name) return this;
    const auto found = std::ranges::find(adapted, name, [](const auto& model) { return model->info.name; });
    return found == adapted.end() ? nullptr : found->get();
}

Scheduler& ServedModel::generating() const {
    if (scheduler == nullptr)
        throw ApiError(
            400,
            fmt::format("the model '{}' is an encoder and generates no text - use /v1/embeddings", info.name),
            "model", "no_generation");
    return *scheduler;
}

EncoderQueue& ServedModel::encoding() const {
    if (encoder == nullptr)
        throw ApiError(
            400,
            fmt::format("the model '{}' is a decoder; embeddings and reranking need an encoder", info.name),
            "model", "no_encoder");
    return *encoder;
}

void ServedModel::shutdown(std::chrono::milliseconds grace) {
    if (scheduler != nullptr) scheduler->shutdown(grace);
    if (encoder != nullptr) encoder->shutdown(grace);
}

bool ServedModel::lost() const {
    return (scheduler != nullptr && scheduler->lost()) || (encoder != nullptr && encoder->lost());
}

const char* model_state_name(ModelState state) {
    switch (state) {
        case ModelState::unloaded: return "unloaded";
        case ModelState::loading: return "loading";
        case ModelState::loaded: break;
    }
    return "loaded";
}

std::vector<std::string> names_of(const std::vector<ListedModel>& models) {
    std::vector<std::string> names;
    for (const ListedModel& model : models) names.push_back(model.info.name);
    return names;
}

ApiError no_such_model(const std::string& name, const std::vector<std::string>& served) {
    constexpr size_t kShown = 8;
    std::string some;
    for (size_t i = 0; i < std::min(served.size(), kShown); ++i)
        some += fmt::format("{}'{}'", i == 0 ? "" : ", ", served[i]);
    if (served.size() > kShown) some += fmt::format(" and {} more (GET /v1/models)", served.size() - kShown);
    return ApiError(404, fmt::format("the model '{}' is not served here; served: {}", printable(name), some),
                    "model", "model_not_found");
}

ListedModel Models::listed(const std::string& name) {
    std::vector<ListedModel> all = list();
    const auto found =
        name.empty() ? all.begin() : std::ranges::find(all, name, [](const auto& m) { return m.info.name; });
    if (found == all.end()) throw no_such_model(name, names_of(all));
    return std::move(*found);
}

}  // namespace refold
