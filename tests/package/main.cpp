// Uses of the interface that the examples do not show.
#include <refold/refold.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::cerr << "not so: " << what << '\n';
    std::exit(1);
}

template <typename Action>
void require_error(refold::ErrorCode code, const Action& action, const char* what) {
    try {
        action();
    } catch (const refold::Error& error) {
        require(error.code() == code, what);
        return;
    }
    require(false, what);
}

void check_generation(const std::string& path) {
    refold::LanguageModel one(path, {.threads = 1, .context = 64, .f32 = true});
    refold::GenerationOptions options;
    options.max_tokens = 12;
    options.ignore_eos = true;
    options.logprobs = 2;
    const std::vector<std::string> prompts = {"The licence is", "The licence", "A text"};

    refold::LanguageModel many(path, {.threads = 1, .context = 64, .f32 = true, .sequences = 3});
    const auto together = refold::generate(many, prompts, options);
    for (size_t p = 0; p < prompts.size(); ++p) {
        const auto alone = refold::generate(one, prompts[p], options);
        require(alone.tokens == together[p].tokens, "a batch gives what one prompt gives");
        require(refold::generate(one, one.tokenizer().encode(prompts[p], true, true), options).tokens ==
                    alone.tokens,
                "token ids give what their text gives");
        require(alone.tokens.size() == 12 && alone.logprobs.size() == 12, "as many tokens as asked for");
        require(alone.logprobs[0].top.size() == 2, "with their likeliest ones");
    }

    int calls = 0;
    const auto cancelled =
        refold::generate(one, prompts[0], options, [&](std::string_view) { return ++calls < 3; });
    require(cancelled.finished == refold::FinishReason::cancelled, "a callback cancels");
    std::stop_source source;
    source.request_stop();
    const auto stopped = refold::generate(one, prompts[0], options, {}, source.get_token());
    require(stopped.finished == refold::FinishReason::cancelled && stopped.tokens.empty(),
            "a stop token cancels");

    options.sampling.top_p = 2;
    require_error(
        refold::ErrorCode::usage, [&] { refold::generate(one, prompts[0], options); }, "options are checked");
    require_error(
        refold::ErrorCode::input, [&] { refold::generate(one, std::vector<int32_t>(65, 5)); },
        "prompts must fit the context");
}

void check_scores(const std::string& path) {
    refold::LanguageModel model(path, {.threads = 1, .context = 64, .f32 = true});
    const std::vector<int32_t> tokens = model.tokenizer().encode("The licence is", true, false);
    const auto scores = refold::score(model, tokens);
    require(scores.size() + 1 == tokens.size(), "all tokens but the first are scored");
    const auto logits = model.logits(std::span(tokens).first(tokens.size() - 1));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const double expected = static_cast<double>(logits[static_cast<size_t>(tokens.back())]) - std::log(sum);
    require(std::abs(scores.back().logprob - expected) < 1e-4, "scores are those of the logits");
    require(static_cast<int64_t>(logits.size()) == model.info().n_vocab, "one logit per token");
    const auto all = model.all_logits(tokens);
    require(all.size() == tokens.size() * logits.size(), "all logits have a row per token");
    for (size_t v = 0; v < logits.size(); ++v)
        require(std::abs(all[(tokens.size() - 2) * logits.size() + v] - logits[v]) < 1e-4F, "the same ones");
    require(refold::score_continuation(model, "The licence", " is") < 0,
            "a model that a call left can be used again");
}

// Everything that takes long can be cancelled, and says how far it is.
void check_control(const std::string& path, const std::string& folder) {
    refold::LanguageModel model(path, {.threads = 1, .context = 64, .f32 = true});
    const std::vector<int32_t> tokens = model.tokenizer().encode("The licence is", true, false);
    std::stop_source source;
    source.request_stop();
    const auto cancelled = [](const auto& action) {
        require_error(refold::ErrorCode::interrupted, action, "a stop token cancels");
    };
    const refold::Control stopped{.stop = source.get_token()};
    const refold::ModelFile file(path);
    const std::string output = folder + "/saved.gguf";
    cancelled([&] { model.all_logits(tokens, source.get_token()); });
    cancelled([&] { refold::score(model, tokens, 0, source.get_token()); });
    cancelled([&] { refold::perplexity(model, "The licence is", {.context = 64}, stopped); });
    cancelled([&] { file.save(output, false, stopped); });
    cancelled([&] { file.export_gguf(output, false, stopped); });
    require(!std::filesystem::exists(output), "nothing is written when cancelled");

    uint64_t done = 0, total = 1;
    file.save(output, false, {.on_progress = [&](const refold::ProgressReport& p) {
                  done = p.done;
                  total = p.total;
              }});
    require(done == total, "progress goes to the end");
    uint64_t windows = 0;
    refold::perplexity(model, "The licence is a text and a text is a licence", {.context = 8},
                       {.on_progress = [&](const auto& p) { windows = p.done; }});
    require(windows > 1, "windows are counted");
}

void check_errors(const std::string& path, const std::string& encoder) {
    require_error(
        refold::ErrorCode::io, [] { refold::ModelFile("/nowhere/model.gguf"); }, "a missing file");
    require_error(
        refold::ErrorCode::usage, [] { refold::ModelFile("no-such-model"); }, "an unknown name");
    require_error(
        refold::ErrorCode::unsupported, [&] { refold::LanguageModel model(encoder); }, "an encoder");
    require_error(
        refold::ErrorCode::unsupported, [&] { refold::Encoder model(path); }, "a decoder");
    require_error(
        refold::ErrorCode::usage, [&] { refold::plan_compression(path, "steps:\n  - method: nothing\n"); },
        "an unknown method");
}

void check_compression(const std::string& path, const std::string& folder) {
    const std::string recipe = "steps:\n  - method: direct_share\n    ratio: 0.25\n";
    const auto planned = refold::plan_compression(path, recipe);
    const std::string output = folder + "/shared.gguf";
    const auto done = refold::compress(path, recipe, output);
    require(planned.after.bytes == done.after.bytes && done.after.bytes < done.before.bytes,
            "a plan is exact");
    require(refold::inspect(output).stored.bytes == done.after.bytes, "what is written is what was planned");
    require(refold::inspect(output).shares, "the result shares");
    refold::CompressionOptions options;
    options.overwrite = true;
    std::stop_source source;
    source.request_stop();
    options.stop = source.get_token();
    require_error(
        refold::ErrorCode::interrupted,
        [&] { refold::compress(path, recipe, folder + "/cancelled.gguf", options); }, "a stop token cancels");
    require(!std::filesystem::exists(folder + "/cancelled.gguf"), "nothing is written when cancelled");
}

void check_stored_model(const std::string& path, const std::string& folder) {
    refold::StoredModel model(path);
    require(model.config().find("\"n_embd\":64") != std::string::npos, "the configuration is JSON");
    const std::string name = "output_norm.weight";
    const refold::StoredTensor tensor = model.tensor(name);
    require(tensor.type == "F32" && tensor.shape == std::vector<int64_t>{64}, "a tensor has type and shape");
    require(model.view(name).bytes.size() == tensor.bytes, "a view has the tensor's bytes");
    const refold::StoredMatrix gate = model.matrix(1, "ffn.gate");
    require(gate.in == 64 && gate.values == model.values("blk.1.ffn_gate.weight"), "a slot has a matrix");

    refold::StoredModel edited = model.copy();
    std::vector<float> halves = model.values(name);
    for (float& value : halves) value /= 2;
    edited.set_values(name, "f32", tensor.shape, halves);
    std::string topology = model.topology();
    const std::string own = "\"blk.3.ffn_gate.weight\"", shared = "\"blk.2.ffn_gate.weight\"";
    topology.replace(topology.find(own), own.size(), shared);
    edited.set_topology(topology);
    const std::string output = folder + "/edited.gguf";
    edited.save(output, {.recipe = "by hand"});
    const refold::StoredModel again(output);
    require(again.values(name) == halves && model.values(name) != halves, "edits are of the copy");
    require(again.topology() == topology, "the topology is saved");
    require(again.provenance().find("by hand") != std::string::npos, "the provenance says what was done");

    topology.replace(topology.find(shared), shared.size(), "\"nothing\"");
    edited.set_topology(topology);
    require_error(
        refold::ErrorCode::input, [&] { edited.save(folder + "/never.gguf"); }, "a missing tensor");
    require_error(
        refold::ErrorCode::usage, [&] { edited.set_values(name, "q9", {64}, halves); }, "an unknown type");
    require_error(
        refold::ErrorCode::input, [&] { edited.set_values(name, "f32", {63}, halves); }, "a wrong shape");
    require(!std::filesystem::exists(folder + "/never.gguf"), "what does not fit is not written");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    std::cout << refold::version() << '\n';
    check_generation(argv[1]);
    check_scores(argv[1]);
    check_control(argv[1], argv[3]);
    check_compression(argv[1], argv[3]);
    check_stored_model(argv[1], argv[3]);
    check_errors(argv[1], argv[2]);
    return 0;
}
