#include "serve/key_holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/api_error.h"

namespace refold {
namespace {

using std::chrono::milliseconds;

// As OpenAI writes it: "120ms", "7.66s", "6m0s".
std::string written(milliseconds time) {
    const auto ms = time.count();
    if (ms < 1000) return fmt::format("{}ms", ms);
    if (ms < 60000) return fmt::format("{:g}s", static_cast<double>(ms) / 1000);
    return fmt::format("{}m{}s", ms / 60000, ms % 60000 / 1000);
}

}  // namespace

void Allowance::set_limit(int64_t per_minute, Clock::time_point now) {
    const auto used = static_cast<double>(limit_) - left(now);
    left_ = static_cast<double>(per_minute) - (limit_ == 0 ? 0 : used);
    limit_ = per_minute;
    at_ = now;
}

double Allowance::left(Clock::time_point now) const {
    const double minutes = std::max(0.0, std::chrono::duration<double, std::ratio<60>>(now - at_).count());
    const auto limit = static_cast<double>(limit_);
    return std::min(limit, left_ + (minutes * limit));
}

void Allowance::use(int64_t count, Clock::time_point now) {
    left_ = left(now) - static_cast<double>(count);
    at_ = now;
}

milliseconds Allowance::until(double wanted, Clock::time_point now) const {
    const double missing = wanted - left(now);
    if (limit_ == 0 || missing <= 0) return milliseconds(0);
    return milliseconds(std::llround(std::ceil(missing / static_cast<double>(limit_) * 60000)));
}

KeyHolder::KeyHolder(std::string name, const KeyLimits& limits) : name_(std::move(name)) {
    set_limits(limits);
}

KeyLimits KeyHolder::limits() const {
    const std::lock_guard lock(mutex_);
    return limits_;
}

void KeyHolder::set_limits(const KeyLimits& limits) {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    limits_ = limits;
    requests_.set_limit(limits.requests_per_minute, now);
    tokens_.set_limit(limits.tokens_per_minute, now);
}

std::shared_ptr<void> KeyHolder::begin(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    const auto refuse = [&](milliseconds wait, int64_t limit, const char* what) {
        ++counts_.refused;
        ApiError error(429, fmt::format("the key '{}' may have {} {} - try again later", name_, limit, what),
                       "", "rate_limit_exceeded");
        error.retry_after =
            static_cast<int>(std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(wait).count()));
        throw error;
    };
    if (limits_.concurrent > 0 && counts_.running >= limits_.concurrent)
        refuse(milliseconds(0), limits_.concurrent, "requests at a time");
    if (const auto wait = requests_.until(1, now); wait > milliseconds(0))
        refuse(wait, requests_.limit(), "requests per minute");
    // How many tokens a request takes is known afterwards only.
    if (const auto wait = tokens_.until(1, now); wait > milliseconds(0))
        refuse(wait, tokens_.limit(), "tokens per minute");
    requests_.use(1, now);
    ++counts_.requests;
    ++counts_.running;
    return {nullptr, [self = shared_from_this()](void*) { self->end(); }};
}

void KeyHolder::end() {
    const std::lock_guard lock(mutex_);
    --counts_.running;
}

void KeyHolder::use_tokens(int64_t prompt, int64_t generated, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    tokens_.use(prompt + generated, now);
    counts_.prompt_tokens += static_cast<uint64_t>(prompt);
    counts_.generated_tokens += static_cast<uint64_t>(generated);
}

KeyHolder::Headers KeyHolder::headers(Clock::time_point now) const {
    const std::lock_guard lock(mutex_);
    Headers out;
    const auto add = [&](const char* what, const Allowance& allowance) {
        if (allowance.limit() == 0) return;
        const auto left = static_cast<int64_t>(std::max(0.0, std::floor(allowance.left(now))));
        const auto full = allowance.until(static_cast<double>(allowance.limit()), now);
        out.emplace_back(fmt::format("x-ratelimit-limit-{}", what), std::to_string(allowance.limit()));
        out.emplace_back(fmt::format("x-ratelimit-remaining-{}", what), std::to_string(left));
        out.emplace_back(fmt::format("x-ratelimit-reset-{}", what), written(full));
    };
    add("requests", requests_);
    add("tokens", tokens_);
    return out;
}

KeyHolder::Counts KeyHolder::counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
}

}  // namespace refold
