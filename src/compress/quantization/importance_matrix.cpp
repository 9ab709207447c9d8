#include "compress/quantization/importance_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "io/gguf_parts.h"

namespace refold {
namespace {

constexpr const char* kComponent = "imatrix";
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";
constexpr const char* kDatasets = "imatrix.datasets";
constexpr const char* kChunkCount = "imatrix.chunk_count";
constexpr const char* kChunkSize = "imatrix.chunk_size";

// Bytes of a file in a message.
std::string printable(std::string_view name) {
    if (name.size() > 80 || find_invalid_utf8(name) != std::string_view::npos) return "(unreadable)";
    return std::string(name);
}

[[noreturn]] void reject(const std::string& label, std::string_view name, const std::string& what) {
    fail(ErrorCode::input, kComponent, "{} (file '{}', entry '{}')", what, label, printable(name));
}

void check_values(std::span<const float> values, const std::string& label, std::string_view name) {
    for (const float value : values) {
        if (!std::isfinite(value) || value < 0)
            reject(label, name,
                   fmt::format("sum of squares: got {}, expected a finite number of at least 0", value));
    }
}

// ---- GGUF ----

std::vector<float> floats(const GgufTensor& tensor, const std::string& label) {
    if (tensor.type != DType::F32)
        reject(label, tensor.name, fmt::format("got type {}, expected F32", name(tensor.type)));
    std::vector<float> values(tensor.data.size() / sizeof(float));
    memcpy(values.data(), tensor.data.data(), tensor.data.size());
    check_values(values, label, tensor.name);
    return values;
}

ImportanceMatrix::Entry entry_of(const std::string& label, const std::string& name, std::vector<float> sums,
                                 const std::vector<float>& counts) {
    if (counts.empty() || sums.size() % counts.size() != 0)
        reject(label, name, fmt::format("{} sums do not belong to {} matrices", sums.size(), counts.size()));
    ImportanceMatrix::Entry entry;
    const size_t width = sums.size() / counts.size();
    for (size_t i = 0; i < sums.size(); ++i) {
        const float count = std::round(counts[i / width]);
        sums[i] = count > 0 ? sums[i] / count : 1;
    }
    constexpr float kMost = 1e15F;
    const float most = *std::max_element(counts.begin(), counts.end());
    if (most > kMost) reject(label, name, fmt::format("count: got {}, expected at most {}", most, kMost));
    entry.count = std::llround(most);
    entry.mean_squares = std::move(sums);
    return entry;
}

std::vector<std::string> datasets_of(const GgufMetadata& metadata) {
    const GgufValue* value = metadata.find(kDatasets);
    if (value == nullptr) return {};
    const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value->value);
    if (array == nullptr || (*array)->element != GgufType::String) return {};
    return (*array)->strings;
}

int64_t number(const GgufMetadata& metadata, const char* key) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::min(metadata.integer(key, 0), kMost));
}

ImportanceMatrix parse_gguf(std::span<const std::byte> bytes, const std::string& label) {
    const auto file = GgufFile::parse(bytes, label);
    check_whole(*file, label);
    const GgufMetadata& metadata = file->metadata();
    if (const std::string type = metadata.string("general.type", "model"); type != "imatrix") {
        fail(ErrorCode::input, kComponent,
             "general.type: got '{}', expected 'imatrix' - this is no importance matrix (file '{}')",
             printable(type), label);
    }
    ImportanceMatrix matrix;
    matrix.datasets = datasets_of(metadata);
    matrix.chunks = number(metadata, kChunkCount);
    matrix.chunk_size = number(metadata, kChunkSize);
    std::map<std::string, std::pair<const GgufTensor*, const GgufTensor*>> pairs;
    for (const GgufTensor& tensor : file->tensors()) {
        if (tensor.name.ends_with(kSums))
            pairs[tensor.name.substr(0, tensor.name.size() - kSums.size())].first = &tensor;
        else if (tensor.name.ends_with(kCounts))
            pairs[tensor.name.substr(0, tensor.name.size() - kCounts.size())].second = &tensor;
    }
    for (const auto& [name, pair] : pairs) {
        if (pair.first == nullptr || pair.second == nullptr)
            reject(label, name, fmt::format("without {}", pair.first == nullptr ? kSums : kCounts));
        matrix.tensors[name] = entry_of(label, name, floats(*pair.first, label), floats(*pair.second, label));
    }
    return matrix;
}

// ---- the older binary form: entries of name, calls, and means times calls; then the last call and the
// text's name ----

class Reader {
public:
    Reader(std::span<const std::byte> bytes, const std::string& label) : rest_(bytes), label_(label) {}

    bool at_end() const { return rest_.empty(); }

    int32_t number(const char* what, int32_t least) {
        int32_t value = 0;
        memcpy(&value, take(sizeof(value), what).data(), sizeof(value));
        if (value < least)
            fail(ErrorCode::input, kComponent,
                 "{}: got {}, expected at least {} - no importance matrix (file '{}')", what, value, least,
                 label_);
        return value;
    }
    std::span<const std::byte> take(uint64_t size, const char* what) {
        if (size > rest_.size()) {
            fail(ErrorCode::input, kComponent,
                 "{}: {} bytes are left of the {} expected - no importance matrix, or incomplete (file '{}')",
                 what, rest_.size(), size, label_);
        }
        const auto part = rest_.first(size);
        rest_ = rest_.subspan(size);
        return part;
    }
    std::string text(const char* what, int32_t least) {
        const auto part = take(static_cast<uint64_t>(number(what, least)), what);
        return {reinterpret_cast<const char*>(part.data()), part.size()};
    }

private:
    std::span<const std::byte> rest_;
    const std::string& label_;
};

ImportanceMatrix parse_binary(std::span<const std::byte> bytes, const std::string& label) {
    Reader in(bytes, label);
    ImportanceMatrix matrix;
    for (int32_t left = in.number("number of entries", 1); left > 0; --left) {
        const std::string name = in.text("length of a name", 1);
        const int32_t calls = in.number("calls", 0);
        const int32_t count = in.number("number of values", 1);
        const auto data = in.take(uint64_t{4} * static_cast<uint64_t>(count), "values");
        ImportanceMatrix::Entry& entry = matrix.tensors[name];
        entry.mean_squares.resize(static_cast<size_t>(count));
        memcpy(entry.mean_squares.data(), data.data(), data.size());
        check_values(entry.mean_squares, label, name);
        entry.count = std::max(calls, 1);
        for (float& value : entry.mean_squares) value /= static_cast<float>(entry.count);
    }
    if (in.at_end()) return matrix;
    matrix.chunks = in.number("chunks", 0);
    if (!in.at_end()) matrix.datasets.push_back(in.text("length of the text's name", 0));
    return matrix;
}

}  // namespace

ImportanceMatrix parse_importance_matrix(std::span<const std::byte> bytes, const std::string& label) {
    constexpr std::string_view kMagic = "GGUF";
    const bool gguf =
        bytes.size() >= kMagic.size() && memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
    ImportanceMatrix matrix = gguf ? parse_gguf(bytes, label) : parse_binary(bytes, label);
    if (matrix.tensors.empty()) fail(ErrorCode::input, kComponent, "no entries (file '{}')", label);
    return matrix;
}

ImportanceMatrix load_importance_matrix(const std::string& path) {
    const MappedFile file(path);
    return parse_importance_matrix(file.bytes(), path);
}

void save_importance_matrix(const ImportanceMatrix& matrix, const std::string& path, bool overwrite) {
    GgufMetadata metadata;
    metadata.set("general.type", GgufValue::string("imatrix"));
    auto datasets = std::make_shared<GgufArray>();
    datasets->element = GgufType::String;
    datasets->strings = matrix.datasets;
    datasets->count = matrix.datasets.size();
    metadata.set(kDatasets, {GgufType::Array, std::shared_ptr<const GgufArray>(datasets)});
    metadata.set(kChunkCount, GgufValue::u32(static_cast<uint32_t>(matrix.chunks)));
    metadata.set(kChunkSize, GgufValue::u32(static_cast<uint32_t>(matrix.chunk_size)));
    std::vector<GgufOutputTensor> tensors;
    const auto add = [&](const std::string& name, std::vector<float> values) {
        const auto columns = static_cast<int64_t>(values.size());
        tensors.push_back({name, DType::F32, {columns, 1}, [kept = std::move(values)](const auto& sink) {
                               sink(std::as_bytes(std::span<const float>(kept)));
                           }});
    };
    for (const auto& [name, entry] : matrix.tensors) {
        std::vector<float> sums = entry.mean_squares;
        for (float& sum : sums) sum *= static_cast<float>(entry.count);
        check_values(sums, path, name);
        add(name + std::string(kSums), std::move(sums));
        add(name + std::string(kCounts), {static_cast<float>(entry.count)});
    }
    write_gguf(path, overwrite, metadata, tensors);
}

void check_importance_matrix(const ImportanceMatrix& matrix, const Model& model) {
    bool any = false;
    for (const auto& [name, entry] : matrix.tensors) {
        const auto found = model.tensors.find(name);
        if (found == model.tensors.end()) continue;
        any = true;
        int64_t width = found->second.row_elements();
        for (size_t d = 2; d < found->second.shape.size(); ++d) width *= found->second.shape[d];
        if (static_cast<int64_t>(entry.mean_squares.size()) != width) {
            fail(ErrorCode::input, kComponent,
                 "{}: got {} columns, expected {} - the importance matrix is of another model ({})",
                 printable(name), entry.mean_squares.size(), width, model.label);
        }
    }
    if (!any)
        fail(ErrorCode::input, kComponent,
             "no entry belongs to a tensor of {} - the importance matrix is of another model", model.label);
}

}  // namespace refold
