// Time and memory of DirectShare's matching on random weights with a large model's shapes. The weights are
// generated when they are read, so there is no file, and memory is that of the method alone.
//
//   match_bench [--layers 32] [--heads 32] [--kv-heads 32] [--head-dim 128] [--embd 4096] [--json]
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "compress/head_sharing/head_matches.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/text.h"

namespace refold {
namespace {

// F16 numbers of magnitude [2^-6, 2^-5) with random sign and fraction: xorshift, four at a time.
std::vector<std::byte> random_weights(size_t bytes, uint64_t seed) {
    std::vector<std::byte> out(bytes);
    constexpr size_t kPiece = size_t{1} << 20;
    const size_t pieces = (bytes + kPiece - 1) / kPiece;
    parallel_for(static_cast<int64_t>(pieces), default_threads(), [&](int64_t piece) {
        uint64_t x =
            (seed + 1) * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(piece) * 0xD1342543DE82EF95ULL;
        const size_t begin = static_cast<size_t>(piece) * kPiece, end = std::min(bytes, begin + kPiece);
        for (size_t at = begin; at + sizeof x <= end; at += sizeof x) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            const uint64_t halves = (x & 0x83FF83FF83FF83FFULL) | 0x2400240024002400ULL;
            memcpy(out.data() + at, &halves, sizeof halves);
        }
    });
    return out;
}

Model random_model(const std::map<std::string, int64_t>& shape) {
    Model model;
    model.label = "random weights";
    model.family = &find_family("llama");
    ModelConfig& c = model.config;
    c.family = "llama";
    c.n_embd = shape.at("embd");
    c.n_head = shape.at("heads");
    c.n_head_kv = shape.at("kv-heads");
    c.head_dim = shape.at("head-dim");
    c.n_ff = c.n_vocab = 1;
    for (int64_t p = 0; p < shape.at("layers"); ++p) {
        Slots slots;
        for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
            const SlotShape s = slot_shape(slot, c);
            const std::string name = tensor_name(*model.family, slot, static_cast<size_t>(p));
            Tensor tensor{DType::F16, {s.in, s.out}, {}, {}};
            const size_t bytes = tensor.bytes();
            const auto seed = static_cast<uint64_t>(p) * 8 + static_cast<uint64_t>(slot);
            tensor.produce = [bytes, seed] { return random_weights(bytes, seed); };
            model.tensors[name] = std::move(tensor);
            slots[slot] = Dense{name};
        }
        model.topology.layers.push_back(std::move(slots));
    }
    return model;
}

int run(int argc, char** argv) {
    std::map<std::string, int64_t> shape = {
        {"layers", 32}, {"heads", 32}, {"kv-heads", 32}, {"head-dim", 128}, {"embd", 4096}};
    bool json = false;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--json") {
            json = true;
        } else if (flag.starts_with("--") && shape.contains(flag.substr(2)) && i + 1 < argc &&
                   std::atoll(argv[i + 1]) > 0) {
            shape[flag.substr(2)] = std::atoll(argv[++i]);
        } else {
            fmt::print(stderr,
                       "usage: match_bench [--layers N] [--heads N] [--kv-heads N] [--head-dim N] [--embd N] "
                       "[--json]\n");
            return 2;
        }
    }
    const std::vector<Slot> on = {Slot::attn_q, Slot::attn_k};
    const std::vector<Slot> shared = {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o};
    const Model model = random_model(shape);
    const auto start = std::chrono::steady_clock::now();
    const auto matches = best_head_matches(model, on, shared);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto peak = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    const int64_t units = shape["layers"] * shape["kv-heads"];
    const int64_t numbers =
        (shape["heads"] + shape["kv-heads"]) / shape["kv-heads"] * shape["head-dim"] * shape["embd"];
    double largest = 0;
    for (const auto& match : matches) largest = std::max(largest, match.cosine);
    if (json) {
        nlohmann::json out = {
            {"units", units},     {"numbers_per_unit", numbers}, {"threads", default_threads()},
            {"seconds", seconds}, {"peak_rss_bytes", peak},      {"largest_cosine", largest}};
        for (const auto& [name, value] : shape) out["shape"][name] = value;
        fmt::print("{}\n", out.dump(2));
        return 0;
    }
    TextTable table({"", "value"});
    table.add({"layers x KV groups", fmt::format("{} x {}", shape["layers"], shape["kv-heads"])});
    table.add({"numbers per match vector", format_count(static_cast<uint64_t>(numbers))});
    table.add({"threads", std::to_string(default_threads())});
    table.add({"matching", format_seconds(seconds)});
    table.add({"peak resident memory", format_bytes(peak)});
    table.add({"largest cosine (random weights)", fmt::format("{:.5f}", largest)});
    fmt::print("{}", table.str());
    return 0;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) {
    try {
        return refold::run(argc, argv);
    } catch (const refold::Error& error) {
        fmt::print(stderr, "error: {}\n", error.what());
        return refold::exit_code(error.code());
    }
}
