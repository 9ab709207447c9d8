// Fuzzes safetensors files: for any bytes, tensors that lie inside the file are read, or refold::Error is
// thrown.
#include <cstdlib>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "safetensors_input.h"
#include "scratch.h"
#include "target.h"

namespace {

constexpr std::string_view kWords[] = {"__metadata__", "dtype", "shape", "data_offsets", "BF16", "F8_E4M3",
                                       "BOOL",         "I64",   "F32",   "[0,0]",        "{",    "}"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const std::string path = scratch() / "model.safetensors";
    write_bytes(path, safetensors_bytes(input));
    return reads([&] {
        const SafetensorsFile file = read_safetensors(path);
        const auto whole = file.file->bytes();
        for (const auto& [name, view] : file.tensors) {
            if (view.data.empty()) continue;
            if (view.data.data() < whole.data() ||
                view.data.data() + view.data.size() > whole.data() + whole.size())
                abort();
            use(static_cast<size_t>(view.data.front()) + static_cast<size_t>(view.data.back()));
        }
    });
}

std::vector<std::string> refold::fuzz_seeds() {
    const std::vector<float> values(24, 0.5F);
    const std::string path = scratch() / "seed";
    write_safetensors(path, true,
                      {{"a.weight", {2, 3}, std::span(values).first(6)}, {"b", {24}, values}, {"c", {0}, {}}},
                      {{"format", "pt"}});
    const std::string file = read_bytes(path);
    return {safetensors_input(file), "=" + file};
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
