// Fuzzes PyTorch files: for any bytes, tensors inside the file are read, or refold::Error is thrown.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "io/torch_file.h"
#include "scratch.h"
#include "target.h"

namespace {

constexpr std::string_view kWords[] = {"PK\1\2",
                                       "PK\3\4",
                                       "PK\5\6",
                                       "ctorch._utils\n_rebuild_tensor_v2\n",
                                       "ccollections\nOrderedDict\n",
                                       "\x85",
                                       "\x86",
                                       "(",
                                       "t",
                                       "R",
                                       "}",
                                       "s",
                                       "u",
                                       "h\1",
                                       "q\1",
                                       "J\xff\xff\xff\x7f",
                                       "K\1",
                                       "Q",
                                       "\xff\xff\xff\xff",
                                       "\x8a\x08",
                                       "X\3",
                                       "\x94",
                                       "\x93",
                                       "."};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    const std::string path = scratch() / "weights.bin";
    write_bytes(path, input);
    return reads([&] {
        const SafetensorsFile file = read_torch_file(path);
        const auto whole = file.file->bytes();
        for (const auto& [name, view] : file.tensors) {
            for (const std::byte byte : view.data) use(static_cast<size_t>(byte));  // every byte can be read
            if (!view.data.empty() && view.data.data() < whole.data()) abort();
        }
    });
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (const auto& entry : std::filesystem::directory_iterator(REFOLD_FIXTURES "/torch")) {
        if (entry.path().extension() != ".bin") continue;
        if (std::string bytes = read_bytes(entry.path()); fuzz_one(bytes)) seeds.push_back(std::move(bytes));
    }
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
