#include "compress/method/work.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "core/group.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "core/temporaries.h"
#include "io/safetensors.h"

namespace refold {

namespace fs = std::filesystem;

Work::Work(std::string folder) : folder_(std::move(folder)), temporary_(folder_.empty()) {}

Work::~Work() {
    std::error_code none;
    // Mapped files live on until the last tensor is gone.
    if (temporary_ && !folder_.empty()) fs::remove_all(folder_, none);
}

std::string Work::path() {
    const std::lock_guard lock(mutex_);
    if (folder_.empty()) {
        std::string pattern = (fs::temp_directory_path() / "refold-work-XXXXXX").string();
        if (mkdtemp(pattern.data()) == nullptr)
            fail(ErrorCode::io, "work", "cannot make a temporary folder '{}'", pattern);
        folder_ = pattern;
    }
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail(ErrorCode::io, "work", "cannot make folder '{}': {}", folder_, error.message());
    return folder_;
}

static std::string name_of(const Computation& computation) {
    return fmt::format("{} v{}", computation.name, computation.version);
}

std::string ResultKey::text() const {
    return nlohmann::json{{"computation", name_of(computation)}, {"inputs", inputs}}.dump();
}

// The mapped file stays alive as long as a tensor of it.
static std::map<std::string, Tensor> tensors_in(const std::string& path) {
    const auto file = std::make_shared<const SafetensorsFile>(read_safetensors(path));
    std::map<std::string, Tensor> out;
    for (const auto& [name, view] : file->tensors) {
        Tensor tensor{DType::F32, {view.shape.rbegin(), view.shape.rend()}, {}, {}};
        if (view.dtype == "U8") {
            const auto packed = parse_json(file->metadata.at(name), "work", "'" + path + "'");
            tensor.type = packed.at("type").get<DType>();
            tensor.shape = packed.at("shape").get<std::vector<int64_t>>();
        }
        tensor.produce = [file, data = view.data] {
            return std::vector<std::byte>(data.begin(), data.end());
        };
        out[name] = std::move(tensor);
    }
    return out;
}

// Nothing where there is none, or a damaged one.
static std::optional<std::map<std::string, Tensor>> stored(const std::string& file) {
    if (!fs::exists(file)) return std::nullopt;
    try {
        return tensors_in(file);
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

// Packed tensors are bytes, whose type and shape are in the metadata under the tensor's name.
static void write_results(const std::string& file, const ResultKey& key, const Arrays& arrays) {
    std::vector<SafetensorsOutput> tensors;
    std::map<std::string, std::string> metadata = {{"key", key.text()}};
    for (const auto& [name, array] : arrays) {
        const bool packed = array.type != DType::F32;
        std::vector<int64_t> shape(array.shape.rbegin(), array.shape.rend());
        if (packed) {
            metadata[name] = nlohmann::json{{"type", array.type}, {"shape", array.shape}}.dump();
            shape = {static_cast<int64_t>(array.packed.size())};
        }
        tensors.push_back({name, packed ? "U8" : "F32", std::move(shape), [&array, packed](const auto& sink) {
                               sink(packed ? std::span<const std::byte>(array.packed)
                                           : std::as_bytes(std::span(array.values)));
                           }});
    }
    write_safetensors(file, true, tensors, metadata, {});
}

std::string Work::file_of(const ResultKey& key, std::span<const float> input) {
    {
        const std::lock_guard lock(mutex_);
        computations_.insert(name_of(key.computation));
    }
    const std::string text = key.text();
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    hash.update(std::as_bytes(input));
    return path() + "/" + hash.hex() + ".safetensors";
}

void Work::begin() {
    const std::lock_guard lock(mutex_);
    computations_.clear();
}

std::string Work::computations() const {
    const std::lock_guard lock(mutex_);
    return fmt::format("{}", fmt::join(computations_, ", "));
}

std::map<std::string, Tensor> Work::results(const ResultKey& key, std::span<const float> input,
                                            const std::function<Arrays()>& compute) {
    const std::string file = file_of(key, input);
    if (auto found = stored(file)) {
        const std::lock_guard lock(mutex_);
        ++reused_;
        return *found;
    }
    write_results(file, key, compute());
    return tensors_in(file);
}

static std::string bytes_in(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// What the first process has of an earlier run is what all have.
void Work::take_first(const ResultKey& key) {
    Group& processes = group();
    if (processes.size() == 1) return;
    const std::string file = file_of(key, {});
    const std::string found = processes.gather(processes.first() && stored(file) ? bytes_in(file) : "")[0];
    if (found.empty()) {
        std::error_code none;
        fs::remove(file, none);
    } else if (!processes.first()) {
        write_file(file, found);
    }
}

std::map<std::string, Tensor> Work::results_of_all(const ResultKey& key,
                                                   const std::function<Arrays()>& compute) {
    take_first(key);
    return results(key, {}, compute);
}

std::vector<std::map<std::string, Tensor>> Work::results_shared_out(
    std::span<const ResultKey> keys, const std::function<Arrays(size_t)>& compute,
    const std::function<void()>& done) {
    Group& processes = group();
    std::vector<std::map<std::string, Tensor>> out;
    const auto size = static_cast<size_t>(processes.size()), rank = static_cast<size_t>(processes.rank());
    for (size_t begin = 0; begin < keys.size(); begin += size) {
        const size_t end = std::min(keys.size(), begin + size), own = begin + rank;
        for (size_t i = begin; i < end; ++i) take_first(keys[i]);
        std::string computed;
        if (own < end) {
            const bool others_lack_it = size > 1 && !stored(file_of(keys[own], {}));
            results(keys[own], {}, [&] { return compute(own); });
            if (others_lack_it) computed = bytes_in(file_of(keys[own], {}));
        }
        const std::vector<std::string> all = processes.gather(computed);
        for (size_t i = begin; i < end; ++i) {
            if (i != own && !all[i - begin].empty()) write_file(file_of(keys[i], {}), all[i - begin]);
            out.push_back(tensors_in(file_of(keys[i], {})));
            done();
        }
    }
    return out;
}

std::optional<std::map<std::string, Tensor>> Work::kept(const ResultKey& key) {
    take_first(key);
    return stored(file_of(key, {}));
}

// The files of results, and those of training (train/train.h) in its folders.
static bool is_of_work(const fs::path& name) {
    const std::string first = name.begin()->string(), file = name.filename().string();
    if (!name.has_parent_path()) {
        constexpr size_t kHashDigits = 64;
        return name.extension() == ".safetensors" && name.stem().string().size() == kHashDigits &&
               file.find_first_not_of("0123456789abcdef") == kHashDigits;
    }
    return (first == "train" || first.starts_with("end-to-end-")) &&
           (file == "checkpoint.safetensors" || file == "tokens.bin" || file == "tokens.lock" ||
            (file.starts_with("teacher-") && name.extension() == ".bin"));
}

void Work::finish() {
    if (!folder_.empty()) remove_files(folder_, is_of_work);
}

Tensor as_type(const Tensor& tensor, DType type) {
    if (tensor.type == type) return tensor;
    Tensor out{type, tensor.shape, {}, {}};
    out.produce = [tensor, type] {
        const TensorBytes bytes(tensor);
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        dequantize(tensor.type, bytes.bytes(), values);
        return quantize(type, values, tensor.row_elements());
    };
    return out;
}

}  // namespace refold
