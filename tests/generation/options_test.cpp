#include "generation/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_refused(const GenerationOptions& options, const char* option, int64_t n_vocab = 100) {
    try {
        check_generation(options, n_vocab);
        ADD_FAILURE() << option << " was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
        EXPECT_THAT(error.what(), HasSubstr(option));
    }
}

TEST(GenerationOptions, OutOfRangeNamesTheOption) {
    const auto sampling = [](const SamplingOptions& s) { return GenerationOptions{.sampling = s}; };
    for (const double bad : {-0.1, kNotANumber, kInfinity, 1e300})
        expect_refused(sampling({.temperature = bad}), "temperature");
    expect_refused(sampling({.top_k = -1}), "top-k");
    for (const double bad : {0.0, 1.01, kNotANumber}) expect_refused(sampling({.top_p = bad}), "top-p");
    for (const double bad : {-0.1, 1.01, kNotANumber}) expect_refused(sampling({.min_p = bad}), "min-p");
    for (const double bad : {0.0, 1.01, kNotANumber})
        expect_refused(sampling({.typical_p = bad}), "typical-p");
    for (const int bad : {-1, 3}) expect_refused(sampling({.mirostat = bad}), "mirostat");
    for (const double bad : {0.0, kNotANumber, kInfinity})
        expect_refused(sampling({.mirostat_tau = bad}), "mirostat-tau");
    for (const double bad : {-0.1, 1.1, kNotANumber})
        expect_refused(sampling({.mirostat_eta = bad}), "mirostat-eta");
    expect_refused(sampling({.penalty_last_n = -2}), "penalty-last-n");
    for (const double bad : {0.0, -1.0, kNotANumber, kInfinity})
        expect_refused(sampling({.repetition_penalty = bad}), "repetition");
    for (const double bad : {-2.1, 2.1, kNotANumber}) {
        expect_refused(sampling({.presence_penalty = bad}), "presence");
        expect_refused(sampling({.frequency_penalty = bad}), "frequency");
        expect_refused(sampling({.logit_bias = {{5, 100 * bad}}}), "bias");
    }
    expect_refused(sampling({.logit_bias = {{-1, 1}}}), "bias");
    expect_refused(sampling({.logit_bias = {{100, 1}}}), "bias");
    expect_refused({.max_tokens = -1}, "max_tokens");
    expect_refused({.stop_tokens = {100}}, "stop-tokens");
    expect_refused({.stop_tokens = {-1}}, "stop-tokens", 0);
    expect_refused({.logprobs = -2}, "logprobs");
    expect_refused({.logprobs = 101}, "logprobs");
}

TEST(GenerationOptions, LimitsAreInRange) {
    const GenerationOptions most{.sampling = {.temperature = 100,
                                              .top_k = 1'000'000,
                                              .top_p = 1,
                                              .min_p = 1,
                                              .penalty_last_n = -1,
                                              .repetition_penalty = 1e-6,
                                              .presence_penalty = -2,
                                              .frequency_penalty = 2,
                                              .logit_bias = {{0, -kInfinity}, {99, 100}}},
                                 .max_tokens = 0,
                                 .stop_tokens = {0, 99},
                                 .logprobs = 100};
    EXPECT_NO_THROW(check_generation(most, 100));
    EXPECT_NO_THROW(check_generation({.stop_tokens = {1'000'000}}));
}

}  // namespace
}  // namespace refold
