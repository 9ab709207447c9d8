#include "io/gguf_parts.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "core/error.h"

namespace refold {
namespace {

constexpr const char *kNumberKey = "split.no", *kCountKey = "split.count",
                     *kTensorsKey = "split.tensors.count";
constexpr const char* kComponent = "gguf";

std::string part_path(const std::string& base, uint64_t number, uint64_t count) {
    return fmt::format("{}-{:05}-of-{:05}.gguf", base, number, count);
}

// Numbers from 1, as in file names; the key split.no counts from 0.
struct Place {
    uint64_t number, count;
};
Place place_of(const GgufFile& file, const std::string& path) {
    constexpr uint64_t kMostParts = 99999;  // five digits in the file's name
    const Place place{file.metadata().integer(kNumberKey, 0) + 1, file.metadata().integer(kCountKey, 1)};
    if (place.count > kMostParts || place.number > std::max<uint64_t>(place.count, 1))
        fail(ErrorCode::input, kComponent,
             "the file says that it is part {} of {} (keys '{}' and '{}', file '{}')", place.number,
             place.count, kNumberKey, kCountKey, path);
    return {place.number, std::max<uint64_t>(place.count, 1)};
}

void check_tensors(const GgufParts& parts, const std::string& path) {
    std::set<std::string> names;
    for (const auto& file : parts.files) {
        for (const auto& tensor : file->tensors()) {
            if (!names.insert(tensor.name).second)
                fail(ErrorCode::input, kComponent, "tensor '{}' is in two parts (second one: '{}')",
                     tensor.name, file->file()->path());
        }
    }
    const uint64_t expected = parts.files.front()->metadata().integer(kTensorsKey, names.size());
    if (names.size() != expected)
        fail(ErrorCode::input, kComponent,
             "the {} parts have {} tensors together, key '{}' of the first one says {} (file '{}')",
             parts.files.size(), names.size(), kTensorsKey, expected, path);
}

}  // namespace

GgufPartName gguf_part_name(const std::string& path) {
    constexpr size_t kTail = 20;  // "-00002-of-00003.gguf"
    if (path.size() <= kTail) return {path};
    const std::string tail = path.substr(path.size() - kTail);
    constexpr std::string_view kPattern = "-#####-of-#####.gguf";
    const bool matches = std::equal(tail.begin(), tail.end(), kPattern.begin(), [](char c, char wanted) {
        return wanted == '#' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == wanted;
    });
    if (!matches) return {path};
    const GgufPartName name{path.substr(0, path.size() - kTail), std::stoull(tail.substr(1, 5)),
                            std::stoull(tail.substr(10, 5))};
    return name.number >= 1 && name.number <= name.count ? name : GgufPartName{path};
}

GgufParts open_gguf_parts(const std::string& path) {
    GgufParts parts;
    parts.files.push_back(GgufFile::open(path));
    const Place first = place_of(*parts.files.front(), path);
    if (first.count > 1) {
        const GgufPartName name = gguf_part_name(path);
        if (first.number != name.number || first.count != name.count)
            fail(ErrorCode::input, kComponent,
                 "the file is part {} of {} of a model, so its name must end in '{}', as llama.cpp's "
                 "gguf-split "
                 "names parts (file '{}')",
                 first.number, first.count, part_path("", first.number, first.count), path);
        if (first.number != 1)
            fail(ErrorCode::usage, kComponent, "'{}' is part {} of {} of a model: give the first one, '{}'",
                 path, first.number, first.count, part_path(name.base, 1, name.count));
        for (uint64_t number = 2; number <= name.count; ++number) {
            const std::string next = part_path(name.base, number, name.count);
            std::error_code none;
            if (!std::filesystem::exists(next, none))
                fail(ErrorCode::io, kComponent,
                     "part {} of {} is missing: '{}' - all parts must be in one folder", number, name.count,
                     next);
            parts.files.push_back(GgufFile::open(next));
            const Place place = place_of(*parts.files.back(), next);
            if (place.number != number || place.count != name.count)
                fail(ErrorCode::input, kComponent, "'{}' is part {} of {}, expected part {} of {}", next,
                     place.number, place.count, number, name.count);
        }
        check_tensors(parts, path);
    }
    parts.metadata = parts.files.front()->metadata();
    for (const char* key : {kNumberKey, kCountKey, kTensorsKey}) parts.metadata.erase(key);
    return parts;
}

void check_whole(const GgufFile& file, const std::string& path) {
    const Place place = place_of(file, path);
    if (place.count > 1)
        fail(ErrorCode::unsupported, kComponent,
             "'{}' is part {} of {}: merge the parts with llama.cpp's gguf-split --merge first", path,
             place.number, place.count);
}

}  // namespace refold
