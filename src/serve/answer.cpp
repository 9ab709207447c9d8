#include "serve/answer.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "core/error.h"
#include "generation/options.h"
#include "generation/sampler.h"
#include "serve/prompt_field.h"

namespace refold {
namespace {

uint64_t any_seed() {
    std::random_device random;
    return (uint64_t{random()} << 32) + random();
}

}  // namespace

ApiError invalid_format(const std::exception& error, const OutputFormat& format) {
    // Without a format, what tools ask for is what cannot be kept.
    return ApiError(400, fmt::format("the format of the output: {}", error.what()),
                    format.kind == OutputFormat::Kind::any ? "tools" : format.field, "invalid_format");
}

const char* finish_name(const GenerationEvent& last) {
    switch (*last.finished) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::timeout: throw timeout_error();
        case FinishReason::shutdown: throw shutting_down();
        case FinishReason::cancelled: throw ApiError(500, "the request was cancelled", "", "cancelled");
        case FinishReason::error: break;
    }
    if (last.format_error) throw ApiError(400, last.error, "", "invalid_format");
    throw ApiError(500, last.error.empty() ? "the generation failed" : last.error);
}

std::string new_id(const char* prefix) {
    std::random_device random;
    return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

std::string new_call_id(bool brief) {
    if (!brief) return new_id("call");
    std::random_device random;
    return fmt::format("{:08x}{:01x}", random(), random() % 16);
}

int64_t seconds_since_1970() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

void PromptLimits::too_long(const std::string& what, const char* field) const {
    throw ApiError(
        400, fmt::format("the prompt has {}, more than the context of {} tokens can hold", what, context),
        field, "context_length_exceeded");
}

void PromptLimits::check_length(size_t bytes, const char* field) const {
    if (bytes / std::max<size_t>(longest_token, 1) > static_cast<size_t>(context))
        too_long(fmt::format("{} bytes", bytes), field);
}

ApiAnswer::ApiAnswer(const ApiRequest& request, const PromptLimits& limits)
    : stream(request.stream),
      n_(static_cast<size_t>(std::max(request.n, request.best_of))),
      context_(limits.context),
      seed_(request.seed),
      any_seed_(any_seed()) {
    static_cast<GenerationOptions&>(common_) = request.options;
    check_ids(common_.stop_tokens, limits.n_vocab, "stop_token_ids");
    for (const auto& [token, bias] : common_.sampling.logit_bias)
        check_ids({token}, limits.n_vocab, "logit_bias");
    try {
        check_generation(common_, limits.n_vocab);
    } catch (const Error& error) {
        throw ApiError(400, error.what());
    }
    common_.sampler = std::make_shared<Sampler>(common_.sampling);
    common_.sampling.logit_bias.clear();  // the sampler has it
}

void ApiAnswer::add_prompt(std::vector<int32_t> tokens, int64_t max_tokens, const char* field) {
    const auto length = static_cast<int64_t>(tokens.size());
    usage.prompt_tokens += length;
    if (length == 0) throw ApiError(400, "the prompt is empty", field, "empty_prompt");
    if (length + std::min<int64_t>(max_tokens, 1) > context_) {
        throw ApiError(400,
                       fmt::format("the prompt has {} tokens, the context holds {}, generated ones included",
                                   length, context_),
                       field, "context_length_exceeded");
    }
    prompts_.push_back({std::move(tokens), std::min(max_tokens, context_ - length)});
}

void ApiAnswer::set_structure(AnswerStructure structure) {
    common_.shown = structure.marks;
    structure_ = std::move(structure);
}

void ApiAnswer::count(size_t choice, const GenerationEvent& event) {
    usage.completion_tokens += static_cast<int64_t>(event.tokens.size());
    if (!usage.first_token && !event.tokens.empty()) usage.first_token = std::chrono::steady_clock::now();
    if (choice % n_ == 0) usage.cached_tokens += event.known_prompt;  // prompts are counted once
}

void ApiAnswer::compile_format(GrammarCompiler& grammars) {
    try {
        common_.grammar = structure_.format.empty() ? grammars.compile(common_.format)
                                                    : grammars.compile_structure(structure_);
    } catch (const Error& error) {
        throw invalid_format(error, common_.format);
    }
    common_.format = {};  // the grammar has it
}

GenerationRequest ApiAnswer::request(size_t choice) const {
    const Prompt& prompt = prompt_of(choice);
    GenerationRequest out = common_;
    out.prompt = prompt.tokens;
    out.max_tokens = prompt.max_tokens;
    // Clients that score a prompt in this way expect one generated token after it, whatever it is.
    if (out.prompt_logprobs && out.max_tokens == 1) out.ignore_eos = true;
    out.seed = seed_ ? *seed_ + choice % n_ : any_seed_ + choice;
    return out;
}

}  // namespace refold
