#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "native/bindings.h"
#include "native/task.h"
#include "native/turns.h"

namespace refold::python {
namespace {

std::optional<Pooling> pooling_of(const std::optional<std::string>& name) {
    if (!name) return std::nullopt;
    if (*name == "mean") return Pooling::mean;
    if (*name == "first" || *name == "cls") return Pooling::first;
    if (*name == "max") return Pooling::max;
    if (*name == "last") return Pooling::last;
    if (*name == "model") return Pooling::model;
    throw Error(ErrorCode::usage,
                "[python] pooling: got '" + *name + "', expected 'mean', 'cls', 'max', 'last' or 'model'");
}

class TextEncoder {
public:
    TextEncoder(const std::string& name, const EncoderOptions& options)
        : encoder_(run([&](const std::stop_token&) { return std::make_unique<Encoder>(name, options); })) {}

    Facts info() const { return to_dict(encoder_->info()); }
    std::vector<int32_t> tokenize(const std::string& text) const {
        return encoder_->tokenizer().encode(text, true, true);
    }

    nb::ndarray<nb::numpy, float> embed(const std::vector<std::string>& texts,
                                        const std::optional<std::string>& pooling,
                                        std::optional<bool> normalize) {
        const auto how = pooling_of(pooling);
        auto values = run([&](const std::stop_token& stop) {
            const Turns::Turn turn(turns_, stop);
            return encoder_->embed(texts, how, normalize, [&](size_t) {
                if (stop.stop_requested()) throw Error(ErrorCode::interrupted, "[python] cancelled");
            });
        });
        return to_array(std::move(values), {texts.size(), encoder_->embedding_size(how)});
    }

    nb::ndarray<nb::numpy, float> hidden_states(const std::vector<int32_t>& tokens) {
        EncodedText text = run([&](const std::stop_token& stop) {
            const Turns::Turn turn(turns_, stop);
            return encoder_->encode(tokens);
        });
        return to_array(std::move(text.last_hidden_state), {tokens.size(), width()});
    }

private:
    size_t width() const { return static_cast<size_t>(encoder_->info().n_embd); }

    std::unique_ptr<Encoder> encoder_;
    Turns turns_;
};

}  // namespace

void bind_encoder(nb::module_& module) {
    nb::class_<TextEncoder>(module, "Encoder")
        .def(
            "__init__",
            [](TextEncoder* self, const std::string& name, int threads, int64_t context, bool f32) {
                new (self) TextEncoder(name, {.threads = threads, .context = context, .f32 = f32});
            },
            nb::arg("name"), nb::kw_only(), nb::arg("threads"), nb::arg("context"), nb::arg("f32"))
        .def("info", &TextEncoder::info)
        .def("tokenize", &TextEncoder::tokenize, nb::arg("text"))
        .def("embed", &TextEncoder::embed, nb::arg("texts"), nb::arg("pooling").none(),
             nb::arg("normalize").none())
        .def("hidden_states", &TextEncoder::hidden_states, nb::arg("tokens"));
}

}  // namespace refold::python
