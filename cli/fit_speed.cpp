#include "cli/fit_speed.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "eval/provenance.h"
#include "eval/speed.h"

namespace refold::cli {

using Json = nlohmann::ordered_json;

void measure_speeds(const FitArguments& a, FitInput& input, const Calibration& calibration, Work& work) {
    if (a.decode_speed <= 0) return;
    input.options.speeds = measure_type_speeds(
        input.model, work, {identity_of(input.model, calibration), cpu_name(), a.threads});
}

Json predicted_speed(const FitArguments& a, const FitInput& input, const FitPlan& plan) {
    if (a.decode_speed <= 0) return {};
    const double now = token_seconds(input.model, *input.options.speeds);
    return {{"wanted_ratio", a.decode_speed},
            {"context", decode_context(input.model)},
            {"predicted_ratio", now / plan.token_seconds},
            {"predicted_tokens_per_s", 1 / plan.token_seconds},
            {"predicted_original_tokens_per_s", 1 / now}};
}

Json measured_speed(const FitArguments& a, const FitInput& input, const FitPlan& plan,
                    const std::string& path) {
    Json out = predicted_speed(a, input, plan);
    if (out.is_null()) return out;
    const SpeedOptions options{
        .prefill = decode_context(input.model),
        .decode = std::max<int64_t>(1, std::min<int64_t>(32, decode_context(input.model) / 8)),
        .rounds = 5};
    EngineOptions engine;
    engine.threads = a.threads;
    engine.context = options.prefill + options.decode;
    const auto made = make_single_sequence(path, engine), original = make_single_sequence(input.path, engine);
    const auto found = measure_speed({subject("result", *made), subject("original", *original)},
                                     input.model.config.n_vocab, options);
    out["ratio"] = ratio(found[0].decode, found[1].decode);
    out["tokens_per_s"] = found[0].decode.median();
    out["original_tokens_per_s"] = found[1].decode.median();
    return out;
}

std::string speed_line(const Json& speed) {
    if (speed.is_null()) return "";
    std::string out =
        fmt::format("decoding at {} tokens of context: predicted {:.2f} times the model's speed",
                    speed["context"].get<int64_t>(), speed["predicted_ratio"].get<double>());
    if (speed.contains("ratio"))
        out += fmt::format(", measured {:.2f} times ({:.1f} and {:.1f} tokens per second)",
                           speed["ratio"].get<double>(), speed["tokens_per_s"].get<double>(),
                           speed["original_tokens_per_s"].get<double>());
    return out + "\n";
}

}  // namespace refold::cli
