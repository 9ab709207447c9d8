// Fuzzes PyTorch files: for any bytes, tensors inside the file are read, or refold::Error is thrown.
//     refold_fuzz_torch_file [--iterations N] [--seed N] FILE...
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "fuzzing.h"
#include "io/torch_file.h"

namespace {

bool run_one(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    try {
        const refold::SafetensorsFile file = refold::read_torch_file(path);
        const auto whole = file.file->bytes();
        for (const auto& [name, view] : file.tensors) {
            uint64_t sum = 0;  // every byte can be read
            for (const std::byte byte : view.data) sum += static_cast<uint64_t>(byte);
            if (!view.data.empty() && (view.data.data() < whole.data() || sum > 255 * view.data.size()))
                abort();
        }
        return true;
    } catch (const refold::Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

constexpr const char* kPieces[] = {"PK\1\2",
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

// Every other time pieces lie over what was there, so that the archive's offsets still hold.
std::string changed(std::string seed, std::mt19937_64& random) {
    if (random() % 2 == 0) return refold::mutated(seed, kPieces, random);
    for (size_t i = 0, count = 1 + random() % 3; i < count; ++i) {
        const std::string piece = kPieces[random() % std::size(kPieces)];
        if (seed.size() > piece.size())
            seed.replace(random() % (seed.size() - piece.size()), piece.size(), piece);
    }
    return seed;
}

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    std::mt19937_64 random(arguments.seed);
    const std::string path =
        (std::filesystem::temp_directory_path() / ("refold-fuzz-torch-" + std::to_string(getpid()))).string();
    uint64_t taken = 0;
    int code = 0;
    try {
        std::vector<std::string> seeds;
        for (const std::string& file : arguments.files) {
            std::ifstream in(file, std::ios::binary);
            seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
            run_one(path, seeds.back());
        }
        for (uint64_t i = 0; i < arguments.iterations && !seeds.empty(); ++i)
            taken += run_one(path, changed(seeds[random() % seeds.size()], random)) ? 1 : 0;
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_torch_file: %s\n", error.what());
        code = 1;
    }
    std::filesystem::remove(path);
    printf("refold_fuzz_torch_file: %llu of %llu files read, the others refused\n",
           static_cast<unsigned long long>(taken), static_cast<unsigned long long>(arguments.iterations));
    return code;
}
