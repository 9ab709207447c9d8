#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_file.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "eval/provenance.h"
#include "eval/read_speed.h"
#include "eval/speed.h"
#include "eval/stock.h"
#include "hub/resolve.h"
#include "model/accounting.h"
#include "model/folded.h"
#include "model/load.h"
#include "model/row_parts.h"
#include "model/save.h"
#include "model/stock.h"

namespace refold::cli::bench_verb {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model, baseline = "stock";
    SpeedOptions speed;
    EngineOptions engine;
    ReportOptions report;
    ReportFile report_file;
};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// A temporary file with the model without sharing.
class DenseCopy {
public:
    explicit DenseCopy(const Model& model) {
        path_ = (std::filesystem::temp_directory_path() / "refold-bench-XXXXXX").string();
        const int descriptor = mkstemp(path_.data());
        if (descriptor < 0)
            fail(ErrorCode::io, "bench", "cannot make a temporary file in '{}' - set TMPDIR",
                 std::filesystem::temp_directory_path().string());
        close(descriptor);
        register_temporary(path_.c_str());
        try {
            save_model(for_stock(model).model, path_, true);
        } catch (...) {
            remove();
            throw;
        }
    }
    ~DenseCopy() { remove(); }
    DenseCopy(const DenseCopy&) = delete;
    DenseCopy& operator=(const DenseCopy&) = delete;

    const std::string& path() const { return path_; }

private:
    void remove() const {
        unlink(path_.c_str());
        unregister_temporary(path_.c_str());
    }
    std::string path_;
};

// The engine that the measured one is compared with: none, stock llama.cpp, or refold with another model.
struct Baseline {
    Json description;    // null without a baseline
    std::string reason;  // why there is no baseline
    std::unique_ptr<StockLlama> stock;
    std::unique_ptr<SingleSequence> sequence;

    std::optional<SpeedSubject> speed_subject() const {
        if (stock) return subject("llama.cpp", *stock);
        if (sequence) return subject("baseline", *sequence);
        return std::nullopt;
    }
    int64_t n_vocab() const { return stock ? stock->n_vocab() : sequence->capabilities().n_vocab; }
};

StockOptions stock_options(const EngineOptions& options) {
    StockOptions stock;
    stock.threads = options.threads;
    stock.context = options.context;
    stock.chunk = options.chunk;
    if (options.kind == EngineKind::ggml && !options.device.empty()) stock.device = options.device;
    stock.gpu_layers = options.gpu_layers;
    stock.workers = options.workers;
    stock.kv = options.f32 ? KvType::f32 : options.kv;
    return stock;
}

Baseline stock_baseline(const Model& model, const EngineOptions& options) {
    Baseline baseline;
    try {
        std::optional<DenseCopy> copy;
        const bool own_form = model.has_sharing() || with_whole_tables(model) || without_folds(model);
        if (own_form || std::filesystem::is_directory(model.label)) copy.emplace(model);
        // libllama maps the file, so its name may be removed once it is loaded.
        baseline.stock =
            std::make_unique<StockLlama>(copy ? copy->path() : model.label, stock_options(options));
        baseline.description = {{"engine", "llama.cpp"}, {"model", model.label}, {"materialized", own_form}};
    } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        baseline.reason = error.what();
    }
    return baseline;
}

Baseline make_baseline(const Arguments& a, const Model& model, const EngineOptions& options) {
    if (a.baseline == "stock") return stock_baseline(model, options);
    Baseline baseline;
    if (a.baseline == "none") {
        baseline.reason = "--baseline none";
        return baseline;
    }
    constexpr std::string_view kStock = "stock:";
    if (a.baseline.starts_with(kStock)) {
        const std::string path = resolve_model(a.baseline.substr(kStock.size()));
        baseline.stock = std::make_unique<StockLlama>(path, stock_options(options));
        baseline.description = {{"engine", "llama.cpp"}, {"model", path}, {"materialized", false}};
        return baseline;
    }
    const std::string path = resolve_model(a.baseline);
    baseline.sequence = make_single_sequence(path, options);
    baseline.description = {{"engine", "refold"}, {"model", path}, {"materialized", false}};
    return baseline;
}

Json speed_json(const SpeedSeries& own, const SpeedSeries* other, int64_t tokens) {
    return {{"tokens_per_s", own.median()},
            {"seconds", static_cast<double>(tokens) / own.median()},
            {"ms_per_token", 1000 / own.median()},
            {"baseline_tokens_per_s", other != nullptr ? Json(other->median()) : Json()},
            {"ratio", other != nullptr ? Json(ratio(own, *other)) : Json()},
            {"rounds", own.tokens_per_s},
            {"baseline_rounds", other != nullptr ? Json(other->tokens_per_s) : Json::array()}};
}

std::string text_of(const Json& out) {
    const bool compared = !out["baseline"].is_null();
    TextTable speed(compared ? std::vector<std::string>{"", "refold t/s", "baseline t/s", "ratio"}
                             : std::vector<std::string>{"", "refold t/s"});
    for (const char* phase : {"prefill", "decode"}) {
        const Json& p = out[phase];
        std::vector<std::string> row{
            fmt::format("{} {}", phase, out[std::string(phase) + "_tokens"].get<int64_t>()),
            fmt::format("{:.1f}", p["tokens_per_s"].get<double>())};
        if (compared) {
            row.push_back(fmt::format("{:.1f}", p["baseline_tokens_per_s"].get<double>()));
            row.push_back(fmt::format("{:.3f}", p["ratio"].get<double>()));
        }
        speed.add(row);
    }
    TextTable memory({"memory and time", ""});
    const auto bytes = [&](const char* label, const char* key) {
        memory.add({label, format_bytes(out[key].get<uint64_t>())});
    };
    bytes("weights resident", "weight_bytes_resident");
    bytes("weights by the accounting", "weight_bytes_accounted");
    const std::string policy = out["kv_policy"];
    std::string cache = "KV cache";
    if (policy != "none") cache += fmt::format(", {} {}", policy, out["kv_budget"].get<double>());
    bytes(cache.c_str(), "kv_bytes");
    bytes("activations and scratch", "compute_bytes");
    bytes("process, resident", "rss_bytes");
    bytes("process, peak", "peak_rss_bytes");
    const Json& read = out["read"];
    const double decoding = read["bytes_per_s"].get<double>(),
                 plain = read["machine_bytes_per_s"].get<double>();
    memory.add({"weights read when decoding", fmt::format("{:.1f} GB/s, {:.0f} % of {:.1f}", decoding / 1e9,
                                                          100 * decoding / plain, plain / 1e9)});
    memory.add({"file to engine ready", fmt::format("{:.3f} s", out["load_seconds"].get<double>())});
    memory.add({"file to first token", fmt::format("{:.3f} s", out["first_token_seconds"].get<double>())});
    std::string baseline;
    if (!compared) {
        baseline = fmt::format("none ({})", out["baseline_reason"].get<std::string>());
    } else {
        baseline = fmt::format(
            "{} on {}{}", out["baseline"]["engine"].get<std::string>(),
            out["baseline"]["model"].get<std::string>(),
            out["baseline"]["materialized"].get<bool>() ? " (sharing materialized: the dense original)" : "");
    }
    return fmt::format("{}, {} threads, median of {} rounds\nbaseline: {}\n\n{}\n{}",
                       out["cpu"].get<std::string>(), out["threads"].get<int>(), out["rounds"].get<int>(),
                       baseline, speed.str(), memory.str());
}

void bench(const Arguments& a) {
    EngineOptions options = a.engine;
    const int64_t needed = a.speed.prefill + a.speed.decode;
    if (options.context == 0) options.context = needed;
    if (options.context < needed) {
        fail(ErrorCode::usage, "bench", "--context {} is too small for --prefill {} and --decode {}",
             options.context, a.speed.prefill, a.speed.decode);
    }
    const std::string path = resolve_model(a.model);
    a.report_file.check();

    const auto start = Clock::now();
    const auto sequence = make_single_sequence(path, options);
    const double load_seconds = seconds_since(start);
    const std::vector<int32_t> prompt(static_cast<size_t>(a.speed.prefill), 0);
    sequence->evaluate(std::span(prompt).first(1));
    const double first_token_seconds = seconds_since(start);
    // One prefill and one decode step allocate all buffers; memory is read before a baseline is loaded.
    sequence->truncate(0);
    sequence->evaluate(prompt);
    sequence->evaluate(std::span(prompt).first(1));
    const EngineMemory memory = sequence->memory();
    const uint64_t resident = resident_bytes(), peak = peak_resident_bytes();
    sequence->truncate(0);
    sequence->pause();

    options.threads = sequence->capabilities().threads;
    options.eviction = {};  // a baseline keeps all tokens
    const Model model = load_model(path);
    const Baseline baseline = make_baseline(a, model, options);
    std::vector<SpeedSubject> subjects{subject("refold", *sequence)};
    int64_t n_vocab = sequence->capabilities().n_vocab;
    if (auto other = baseline.speed_subject()) {
        subjects.push_back(std::move(*other));
        n_vocab = std::min(n_vocab, baseline.n_vocab());
    }
    const std::vector<SpeedResult> results = measure_speed(std::move(subjects), n_vocab, a.speed);
    const SpeedResult* other = results.size() > 1 ? &results[1] : nullptr;
    sequence->pause();
    const double machine = read_speed(options.threads);
    const uint64_t read = bytes_read_per_token(model);

    const Json out = {{"model", path},
                      {"cpu", cpu_name()},
                      {"threads", options.threads},
                      {"prefill_tokens", a.speed.prefill},
                      {"decode_tokens", a.speed.decode},
                      {"rounds", a.speed.rounds},
                      {"baseline", baseline.description},
                      {"baseline_reason", baseline.reason.empty() ? Json() : Json(baseline.reason)},
                      {"prefill", speed_json(results[0].prefill, other != nullptr ? &other->prefill : nullptr,
                                             a.speed.prefill)},
                      {"decode", speed_json(results[0].decode, other != nullptr ? &other->decode : nullptr,
                                            a.speed.decode)},
                      {"seconds", static_cast<double>(a.speed.prefill) / results[0].prefill.median() +
                                      static_cast<double>(a.speed.decode) / results[0].decode.median()},
                      {"read",
                       {{"bytes_per_token", read},
                        {"bytes_per_s", static_cast<double>(read) * results[0].decode.median()},
                        {"machine_bytes_per_s", machine}}},
                      {"weight_bytes_resident", memory.weight_bytes},
                      {"weight_bytes_accounted", account(model).model.bytes},
                      {"kv_bytes", memory.kv_bytes},
                      {"kv_policy", kv_policy_name(a.engine.eviction.policy)},
                      {"kv_budget", a.engine.eviction.budget},
                      {"compute_bytes", memory.compute_bytes},
                      {"rss_bytes", resident},
                      {"peak_rss_bytes", peak},
                      {"load_seconds", load_seconds},
                      {"first_token_seconds", first_token_seconds}};
    EngineOptions measured = options;
    measured.eviction = a.engine.eviction;
    Json with_provenance = out;
    with_provenance["provenance"] = to_json(Provenance{a.model, path, &model, measured, options.threads, {}});
    a.report.json ? print_json(with_provenance) : print(text_of(out));
    a.report_file.write({named_model(a.model, path)}, with_provenance);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    app.add_option("--prefill", a->speed.prefill, "Tokens of the prompt")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--decode", a->speed.decode, "Tokens decoded one by one after it")
        ->type_name("TOKENS")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--rounds", a->speed.rounds, "Rounds, after one to warm up; all engines in turns in each")
        ->type_name("N")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option(
           "--baseline", a->baseline,
           "stock: llama.cpp on the same file (on the dense original if the model shares); stock:MODEL: "
           "llama.cpp on another file; a model, in this engine; none")
        ->type_name("BASELINE")
        ->capture_default_str();
    add_engine_options(app, a->engine, "as much as is needed");
    add_eviction_options(app, a->engine.eviction);
    add_report_options(app, a->report);
    a->report_file.declare(app);
    add_examples(
        app, {"refold bench smollm2-135m-instruct", "refold bench small.gguf --threads 2 --rounds 9 --json",
              "refold bench small.gguf --baseline smollm2-135m-instruct",
              "refold bench small.gguf --baseline stock:q3_k_m.gguf"});
    return [a] { bench(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"bench", VerbGroup::measurement, "Measure speed and memory, beside stock llama.cpp",
                   declare};

}  // namespace refold::cli::bench_verb
