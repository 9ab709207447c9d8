// Fuzzes compressed data of tasks: for any bytes, the file is unpacked or refused with refold::Error. The
// first byte of an input says which: "g" gzip, "b" bzip2, "x" xz, else a member of a zip archive. libarchive
// unpacks.
#include <string>
#include <vector>

#include "scratch.h"
#include "target.h"
#include "tasks/archive.h"

namespace {

constexpr std::string_view kWords[] = {"PK\1\2",
                                       "PK\3\4",
                                       "PK\5\6",
                                       "BZh9",
                                       "\x1f\x8b\x08",
                                       "\xFD"
                                       "7zXZ",
                                       "data"};

std::string extension_of(char kind) {
    switch (kind) {
        case 'g': return ".gz";
        case 'b': return ".bz2";
        case 'x': return ".xz";
        default: return ".zip";
    }
}

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.empty()) return false;
    const std::string extension = extension_of(input.front());
    const std::string path = (scratch() / "data").string() + extension;
    write_bytes(path, input.substr(1));
    return reads([&] { use(read_data_file(extension == ".zip" ? path + "!data" : path).size()); });
}

// Those of corpus/archive.
std::vector<std::string> refold::fuzz_seeds() { return {}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
