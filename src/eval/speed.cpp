#include "eval/speed.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include "core/error.h"
#include "core/progress.h"

namespace refold {
namespace {

double median_of(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double SpeedSeries::median() const { return median_of(tokens_per_s); }

double ratio(const SpeedSeries& a, const SpeedSeries& b) {
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(a.tokens_per_s.size(), b.tokens_per_s.size()); ++i)
        ratios.push_back(a.tokens_per_s[i] / b.tokens_per_s[i]);
    return median_of(ratios);
}

SpeedSubject subject(std::string name, SingleSequence& sequence) {
    return {std::move(name), [&sequence] { sequence.truncate(0); },
            [&sequence](std::span<const int32_t> tokens) { sequence.evaluate(tokens); },
            [&sequence] { sequence.pause(); }};
}

SpeedSubject subject(std::string name, StockLlama& stock) {
    return {std::move(name), [&stock] { stock.clear(); },
            [&stock](std::span<const int32_t> tokens) { stock.evaluate(tokens); },
            [&stock] { stock.pause(); }};
}

std::vector<SpeedResult> measure_speed(std::vector<SpeedSubject> subjects, int64_t n_vocab,
                                       const SpeedOptions& o) {
    if (o.prefill < 1 || o.decode < 1 || o.rounds < 1)
        fail(ErrorCode::usage, "bench", "--prefill, --decode and --rounds must be at least 1");
    std::mt19937 random(o.seed);
    std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(n_vocab - 1));
    std::vector<int32_t> prompt(static_cast<size_t>(o.prefill)), following(static_cast<size_t>(o.decode));
    for (auto& token : prompt) token = id(random);
    for (auto& token : following) token = id(random);

    std::vector<SpeedResult> results;
    for (const auto& s : subjects) results.push_back({s.name, {}, {}});
    Progress progress("speed", static_cast<uint64_t>(o.rounds + 1) * subjects.size(), "runs");
    for (int round = 0; round <= o.rounds; ++round) {
        for (size_t i = 0; i < subjects.size(); ++i) {
            const size_t which = round % 2 == 0 ? i : subjects.size() - 1 - i;
            const SpeedSubject& s = subjects[which];
            s.clear();
            const double prefill = seconds_of([&] { s.append(prompt); });
            const double decode = seconds_of([&] {
                for (const int32_t& token : following) s.append({&token, 1});
            });
            s.pause();
            if (round > 0) {
                results[which].prefill.tokens_per_s.push_back(static_cast<double>(o.prefill) / prefill);
                results[which].decode.tokens_per_s.push_back(static_cast<double>(o.decode) / decode);
            }
            progress.advance(1, s.name);
        }
    }
    progress.finish();
    return results;
}

uint64_t peak_resident_bytes() {
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

uint64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    uint64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace refold
