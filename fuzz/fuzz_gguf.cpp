// Fuzzes the GGUF reader: for any bytes, GgufFile::parse returns a file or throws refold::Error - no crash,
// no sanitizer report, no other exception, no allocation far beyond the input's size.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "scratch.h"
#include "target.h"

namespace {

using refold::GgufArray;
using refold::GgufFile;
using refold::GgufMetadata;
using refold::GgufType;
using refold::GgufValue;
using refold::use;

void touch_all(const GgufFile& file) {
    const GgufMetadata& metadata = file.metadata();
    for (const auto& [key, value] : metadata.entries()) {
        refold::reads([&] { use(static_cast<size_t>(metadata.integer(key))); });
        refold::reads([&] { use(static_cast<size_t>(metadata.real(key) != 0.0)); });
        refold::reads([&] { use(static_cast<size_t>(metadata.boolean(key, false))); });
        refold::reads([&] { use(static_cast<size_t>(metadata.string(key).size())); });
        if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value)) {
            for (const std::byte b : (*array)->packed) use(static_cast<size_t>(b));
            for (const auto& text : (*array)->strings) use(static_cast<size_t>(text.size()));
        }
    }
    for (const auto& tensor : file.tensors()) {
        double bytes = static_cast<double>(refold::block_bytes(tensor.type)) /
                       static_cast<double>(refold::block_elements(tensor.type));
        for (const int64_t n : tensor.shape) bytes *= static_cast<double>(n);
        if (tensor.data.empty() || static_cast<double>(tensor.data.size()) != bytes) abort();
        use(static_cast<size_t>(tensor.data.front()) + static_cast<size_t>(tensor.data.back()));
    }
}

// Files with every kind of value and several tensors, small enough for thousands of runs per second.
std::string built_in_seed(uint32_t alignment, int n_tensors) {
    GgufMetadata m;
    m.set("general.architecture", GgufValue::string("llama"));
    m.set("general.alignment", GgufValue::u32(alignment));
    for (uint32_t type = 0; type < 13; ++type) {
        const auto kind = static_cast<GgufType>(type);
        const std::string key = "kind." + std::to_string(type);
        auto array = std::make_shared<GgufArray>();
        array->element = kind;
        array->count = 3;
        if (kind == GgufType::String) {
            m.set(key, GgufValue::string("a text"));
            array->strings = {"one", "", "three"};
        } else if (kind == GgufType::Bool) {
            m.set(key, GgufValue::boolean(true));
            array->packed.resize(3);
        } else if (kind == GgufType::F32 || kind == GgufType::F64) {
            m.set(key, {kind, 1.5});
            array->packed.resize(kind == GgufType::F32 ? 12 : 24);
        } else if (kind == GgufType::Array) {
            continue;
        } else {
            m.set(key, {kind, uint64_t{type}});
            const size_t bytes[] = {1, 1, 2, 2, 4, 4, 0, 0, 0, 0, 8, 8};
            array->packed.resize(3 * bytes[type]);
        }
        m.set(key + ".array", {GgufType::Array, std::shared_ptr<const GgufArray>(array)});
    }
    const refold::DType types[] = {refold::DType::F32, refold::DType::Q4_0, refold::DType::F16,
                                   refold::DType::Q6_K};
    std::vector<refold::GgufOutputTensor> tensors;
    for (int i = 0; i < n_tensors; ++i) {
        const auto type = types[i % 4];
        std::vector<int64_t> shape{refold::block_elements(type), 1 + i % 3};
        const size_t bytes = refold::block_bytes(type) * static_cast<size_t>(shape[1]);
        for (int d = 0; d < i % 3; ++d) shape.push_back(1);
        tensors.push_back({"blk." + std::to_string(i) + ".weight", type, shape,
                           [bytes](const auto& sink) { sink(std::vector<std::byte>(bytes)); }});
    }
    const std::string path = refold::scratch() / "seed";
    write_gguf(path, true, m, tensors);
    return refold::read_bytes(path);
}

constexpr std::string_view kWords[] = {"GGUF", "general.alignment", "general.architecture", "blk.0.weight",
                                       std::string_view("\x09\0\0\0\x08\0\0\0", 8)};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    return reads([&] { touch_all(*GgufFile::parse(std::as_bytes(std::span(input)), "fuzz")); });
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (const int n : {0, 1, 4, 40}) seeds.push_back(built_in_seed(n == 4 ? 8 : 32, n));
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
