#include <memory>
#include <span>
#include <string>
#include <utility>

#include "native/bindings.h"
#include "native/progress.h"
#include "native/task.h"
#include "native/turns.h"

namespace refold::python {
namespace {

using Tokens = std::vector<int32_t>;
using Generations = std::vector<GenerationResult>;
using TextEvent = std::pair<size_t, std::string>;  // index of the prompt, text

struct Loaded {
    ModelFile file;
    LanguageModel model;
    Turns turns;

    Loaded(const std::string& name, const LanguageModelOptions& options) : file(name), model(file, options) {}
};

// Work that has the model to itself.
template <typename Work>
auto run_with(const std::shared_ptr<Loaded>& loaded, Work work) {
    return run([loaded, work = std::move(work)](std::stop_token stop) {
        const Turns::Turn turn(loaded->turns, stop);
        return work(loaded->model, stop);
    });
}

// Prompts that are being continued; iterating gives the text as it becomes final.
class TextStream {
public:
    TextStream(std::shared_ptr<Loaded> loaded, std::vector<Tokens> prompts, GenerationOptions options)
        : task_([loaded = std::move(loaded), prompts = std::move(prompts), options = std::move(options)](
                    std::stop_token stop, const auto& emit) {
              const Turns::Turn turn(loaded->turns, stop);
              const auto on_text = [&](size_t prompt, std::string_view text) {
                  emit({prompt, std::string(text)});
                  return true;
              };
              return generate(loaded->model, prompts, options, on_text, stop);
          }) {}

    TextEvent next() {
        if (auto event = task_.next()) return std::move(*event);
        finish();
        throw nb::stop_iteration();
    }
    void close() {
        task_.cancel();
        while (task_.next()) {
        }
        try {
            finish();
        } catch (const Error& error) {  // while it waited for its turn
            if (error.code() != ErrorCode::interrupted) throw;
        }
    }
    // At the end of it.
    Generations wait() {
        while (task_.next()) {
        }
        finish();
        return *results_;
    }
    Generations results() const {
        if (!results_)
            throw Error(ErrorCode::usage,
                        "[python] the stream has not ended - iterate to its end or close it");
        return *results_;
    }

private:
    void finish() {
        if (!results_) results_ = task_.result();
    }

    Task<TextEvent, Generations> task_;
    std::optional<Generations> results_;
};

class Model {
public:
    Model(const std::string& name, const LanguageModelOptions& options)
        : loaded_(run([&](const std::stop_token&) { return std::make_shared<Loaded>(name, options); })) {}

    const std::string& path() const { return loaded_->file.path(); }
    Facts info() const { return to_dict(loaded_->file.info()); }
    int64_t context() const { return loaded_->model.context(); }
    const Tokenizer& tokenizer() const { return loaded_->model.tokenizer(); }

    std::string apply_chat_template(const std::vector<std::pair<std::string, std::string>>& messages) const {
        std::vector<ChatMessage> out;
        for (const auto& [role, content] : messages) out.push_back({role, content});
        return tokenizer().apply_chat_template(out);
    }

    std::unique_ptr<TextStream> generate(std::vector<Tokens> prompts, const Facts& options) const {
        return std::make_unique<TextStream>(loaded_, std::move(prompts), generation_options(options));
    }

    nb::ndarray<nb::numpy, float> logits(const Tokens& tokens, bool all) const {
        auto values = run_with(loaded_, [&](LanguageModel& model, const std::stop_token& stop) {
            return all ? model.all_logits(tokens, stop) : model.logits(tokens);
        });
        const auto width = static_cast<size_t>(loaded_->model.info().n_vocab);
        if (!all) return to_array(std::move(values), {width});
        return to_array(std::move(values), {tokens.size(), width});
    }

    std::vector<TokenLogprob> logprobs(const Tokens& tokens, int top) const {
        return run_with(loaded_, [&](LanguageModel& model, const std::stop_token& stop) {
            return refold::score(model, tokens, top, stop);
        });
    }

    double score(const std::string& context, const std::string& continuation) const {
        return run_with(loaded_, [&](LanguageModel& model, const std::stop_token& stop) {
            return score_continuation(model, context, continuation, stop);
        });
    }

    Facts perplexity(const std::string& text, const TextPerplexityOptions& options,
                     const nb::object& progress) const {
        const auto result = run_with_progress(progress, [&](const Control& control) {
            const Turns::Turn turn(loaded_->turns, control.stop);
            return refold::perplexity(loaded_->model, text, options, control);
        });
        Facts out;
        out["perplexity"] = result.perplexity;
        out["standard_error"] = result.standard_error;
        out["mean_nll"] = result.mean_nll;
        out["tokens"] = result.tokens;
        out["windows"] = result.windows;
        return out;
    }

private:
    std::shared_ptr<Loaded> loaded_;
};

std::string write(const std::string& model, const std::string& output, const std::string& format,
                  bool overwrite, const nb::object& progress) {
    return run_with_progress(progress, [&](const Control& control) {
        const ModelFile file(model);
        if (format == "native")
            file.save(output, overwrite, control);
        else if (format == "gguf")
            file.export_gguf(output, overwrite, control);
        else if (format == "hf")
            file.export_hf(output, overwrite, control);
        else
            throw Error(ErrorCode::usage,
                        "[python] format: got '" + format + "', expected 'native', 'gguf' or 'hf'");
        return output;
    });
}

}  // namespace

void bind_model(nb::module_& module) {
    nb::class_<TextStream>(module, "TextStream")
        .def("next", &TextStream::next)
        .def("close", &TextStream::close)
        .def("wait", &TextStream::wait)
        .def_prop_ro("results", &TextStream::results);

    nb::class_<Model>(module, "Model")
        .def(
            "__init__",
            [](Model* self, const std::string& name, int threads, int64_t context, bool f32,
               int64_t sequences, const std::string& draft_model, int64_t draft_tokens) {
                new (self) Model(name, {.threads = threads,
                                        .context = context,
                                        .f32 = f32,
                                        .sequences = sequences,
                                        .draft_model = draft_model,
                                        .draft_tokens = draft_tokens});
            },
            nb::arg("name"), nb::kw_only(), nb::arg("threads"), nb::arg("context"), nb::arg("f32"),
            nb::arg("sequences"), nb::arg("draft_model"), nb::arg("draft_tokens"))
        .def_prop_ro("path", &Model::path)
        .def_prop_ro("context", &Model::context)
        .def_prop_ro("n_vocab", [](const Model& m) { return m.tokenizer().size(); })
        .def_prop_ro("bos", [](const Model& m) { return m.tokenizer().bos(); })
        .def_prop_ro("eos", [](const Model& m) { return m.tokenizer().eos(); })
        .def("info", &Model::info)
        .def(
            "encode",
            [](const Model& m, const std::string& text, bool add_special, bool parse_special) {
                return m.tokenizer().encode(text, add_special, parse_special);
            },
            nb::arg("text"), nb::arg("add_special"), nb::arg("parse_special"))
        .def(
            "decode",
            [](const Model& m, const Tokens& tokens, bool special) {
                const std::string text = m.tokenizer().decode(tokens, special);
                return nb::bytes(text.data(), text.size());
            },
            nb::arg("tokens"), nb::arg("special"))
        .def("apply_chat_template", &Model::apply_chat_template, nb::arg("messages"))
        .def("generate", &Model::generate, nb::arg("prompts"), nb::arg("options"))
        .def("logits", &Model::logits, nb::arg("tokens"), nb::arg("all"))
        .def("logprobs", &Model::logprobs, nb::arg("tokens"), nb::arg("top"))
        .def("score", &Model::score, nb::arg("context"), nb::arg("continuation"))
        .def(
            "perplexity",
            [](const Model& m, const std::string& text, int64_t context, int64_t stride, int64_t max_windows,
               const nb::object& progress) {
                return m.perplexity(text, {.context = context, .stride = stride, .max_windows = max_windows},
                                    progress);
            },
            nb::arg("text"), nb::kw_only(), nb::arg("context"), nb::arg("stride"), nb::arg("max_windows"),
            nb::arg("progress").none());

    module.def(
        "inspect", [](const std::string& model) { return to_dict(inspect(model)); }, nb::arg("model"));
    module.def("write", &write, nb::arg("model"), nb::arg("output"), nb::arg("format"), nb::arg("overwrite"),
               nb::arg("progress").none());
}

}  // namespace refold::python
