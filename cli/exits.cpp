#include "cli/exits.h"

#include <algorithm>

#include "cli/calibration.h"
#include "cli/options.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/text.h"
#include "exit/exit_run.h"

namespace refold::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kCalibrationLength = 1024;

[[noreturn]] void wrong(const std::string& text) { fail(ErrorCode::usage, "exit", "{}", text); }

int64_t calibration_length(const ExitArguments& a, const Model& model) {
    return a.agreement > 0 ? std::min(kCalibrationLength, model.config.context_length) : 0;
}

}  // namespace

void add_eval_exit_options(CLI::App& app, ExitArguments& a, bool perplexity) {
    CLI::Option* exit = add_exit_options(app, a.plan.policy, perplexity ? &a.plan.oracle : nullptr);
    CLI::Option* agreement =
        app.add_option("--exit-agreement", a.agreement,
                       "Find thresholds on --calib with which at least this part of the tokens gets the "
                       "likeliest token of all loops")
            ->type_name("PART")
            ->check(CLI::Range(1e-9, 1.0).description(""))
            ->needs(exit);
    app.add_option("--calib", a.calibration, "Text for --exit-agreement; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->needs(agreement);
    app.add_option("--calib-tokens", a.calibration_tokens,
                   "Calibration tokens, from the beginnings of all texts together")
        ->type_name("N")
        ->check(at_least(2))
        ->capture_default_str();
    if (!perplexity) return;
    app.add_option("--exit-trajectory", a.trajectory,
                   "JSON lines to write: the loop that every token exited after")
        ->type_name("FILE")
        ->needs(exit);
}

void check_exits(const ExitPolicy& policy, const Model& model) {
    check_exit_policy(policy, model.topology.loops, model.topology.globals.contains(Slot::exit_gate));
}

void check_exits(const ExitArguments& a, const Model& model, const EngineOptions& engine) {
    ExitPolicy policy = a.plan.policy;
    if (!a.active()) {
        check_exits(policy, model);
        if (a.agreement > 0 || !a.trajectory.empty()) wrong("--exit none exits nowhere - give another rule");
        return;
    }
    if (engine.kind != EngineKind::ggml) wrong("tokens exit in the ggml engine only - leave out --engine");
    if (engine.eviction.active())
        wrong("exits and a KV cache that evicts rows do not go together - leave out --kv-policy");
    if (a.plan.oracle) {
        if (policy.loop != 0 || !policy.thresholds.empty() || a.agreement > 0)
            wrong("oracle has neither a loop nor thresholds");
        policy = {.rule = ExitRule::fixed, .loop = 1};
    }
    if (a.agreement > 0) {
        if (a.calibration.empty()) wrong("--exit-agreement needs a text to find thresholds on: --calib FILE");
        if (!policy.thresholds.empty())
            wrong("--exit-threshold and --exit-agreement both set the thresholds - give one");
        if (policy.rule == ExitRule::fixed)
            wrong("--exit-agreement is for probability, margin, entropy and gate");
        policy.thresholds = {strictest_threshold(policy.rule)};
    }
    check_exits(policy, model);
}

std::unique_ptr<Engine> make_exit_engine(const Model& model, const ExitArguments& a, EngineOptions options,
                                         int64_t context, int64_t sequences) {
    options.context = std::max(context, calibration_length(a, model));
    options.chunk = exit_chunk(model.config.n_vocab);
    options.sequences = sequences;
    options.by_loop = true;
    return make_engine(model, options);
}

Json calibrate(ExitArguments& a, Engine& engine, const std::string& model) {
    if (a.agreement == 0) return {};
    const Calibration text =
        load_calibration(a.calibration, model,
                         {.tokens = a.calibration_tokens,
                          .length = std::min(kCalibrationLength, engine.capabilities().context)});
    PerplexityPlan plan;
    for (const auto* part : {&text.fit, &text.held_out})
        plan.tokens.insert(plan.tokens.end(), part->begin(), part->end());
    for (const auto& tokens : plan.tokens)
        plan.windows.push_back({tokens.front(), std::span(tokens).subspan(1), 1, plan.windows.size()});
    const ExitCalibration found = calibrate_exits(engine, plan, a.plan.policy, a.agreement);
    a.plan.policy.thresholds = found.thresholds;
    log("thresholds {} for an agreement of {:.2f} %: on '{}' {}", fmt::join(found.thresholds, ","),
        100 * a.agreement, text.name(), exit_counts_text(found.counts));
    Json out{{"wanted_agreement", a.agreement}};
    out.update(exits_json(a, found.counts));
    out["tokens"] = plan.tokens_scored();
    out["texts"] = Json::array();
    for (const auto& t : text.texts) out["texts"].push_back({{"name", t.name}, {"sha256", t.hash}});
    return out;
}

Json exit_counts_json(const ExitCounts& counts) {
    return {{"loops", counts.at_loop.size()},
            {"exits", counts.at_loop},
            {"mean_loops", counts.mean_loops()},
            {"agreement", counts.agreement()}};
}

Json exits_json(const ExitArguments& a, const ExitCounts& counts) {
    Json out{{"rule", a.rule()}};
    if (a.plan.policy.rule == ExitRule::fixed) out["loop"] = a.plan.policy.loop;
    if (!a.plan.policy.thresholds.empty()) out["thresholds"] = a.plan.policy.thresholds;
    out["kv"] = exited_kv_name(a.plan.policy.kv);
    out.update(exit_counts_json(counts));
    return out;
}

std::string exit_rule_text(const ExitArguments& a) {
    const ExitPolicy& p = a.plan.policy;
    std::string rule = a.rule();
    if (p.rule == ExitRule::fixed) rule = fmt::format("after loop {}", p.loop);
    if (!p.thresholds.empty())
        rule += fmt::format(" of {} or {}", fmt::join(p.thresholds, ", "),
                            p.rule == ExitRule::entropy ? "less" : "more");
    return fmt::format("exits: {}, keys and values: {}", rule, exited_kv_name(p.kv));
}

std::string exit_counts_text(const ExitCounts& counts) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < counts.at_loop.size(); ++i) {
        const auto count = static_cast<uint64_t>(counts.at_loop[i]);
        parts.push_back(fmt::format("{}: {} ({:.1f} %)", i + 1, format_count(count),
                                    100 * static_cast<double>(count) / static_cast<double>(counts.tokens())));
    }
    return fmt::format("after loop {}; mean loops {:.3f} of {}, agreement with all loops {:.2f} %",
                       fmt::join(parts, ", "), counts.mean_loops(), counts.at_loop.size(),
                       100 * counts.agreement());
}

}  // namespace refold::cli
