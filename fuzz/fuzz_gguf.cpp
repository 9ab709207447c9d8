// Fuzzes the GGUF reader: for any bytes, GgufFile::parse returns a file or throws refold::Error - no crash,
// no sanitizer report, no other exception, no allocation far beyond the input's size.
//
// With libFuzzer build with -DREFOLD_LIBFUZZER -fsanitize=fuzzer,address,undefined. Otherwise the main()
// below mutates built-in and given files, deterministically:
//     refold_fuzz_gguf [--iterations N] [--seed N] [file.gguf ...]
// An input that crashes is written to $TMPDIR/refold-fuzz-gguf-crash.gguf. A file given with --iterations 0
// runs once without mutation.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "core/error.h"
#include "fuzzing.h"
#include "io/gguf.h"

namespace {

using refold::Error;
using refold::GgufArray;
using refold::GgufFile;
using refold::GgufMetadata;
using refold::GgufType;
using refold::GgufValue;

// Reads must not be optimized away.
volatile unsigned g_sink = 0;

template <typename Read>
void touch(const Read& read) {
    try {
        read();
    } catch (const Error&) {  // the value has another type
    }
}

void touch_all(const GgufFile& file) {
    const GgufMetadata& metadata = file.metadata();
    for (const auto& [key, value] : metadata.entries()) {
        touch([&] { g_sink = g_sink + static_cast<unsigned>(metadata.integer(key)); });
        touch([&] { g_sink = g_sink + static_cast<unsigned>(metadata.real(key) != 0.0); });
        touch([&] { g_sink = g_sink + static_cast<unsigned>(metadata.boolean(key, false)); });
        touch([&] { g_sink = g_sink + static_cast<unsigned>(metadata.string(key).size()); });
        if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value)) {
            for (const std::byte b : (*array)->packed) g_sink = g_sink + static_cast<unsigned>(b);
            for (const auto& text : (*array)->strings) g_sink = g_sink + static_cast<unsigned>(text.size());
        }
    }
    for (const auto& tensor : file.tensors()) {
        double bytes = static_cast<double>(refold::block_bytes(tensor.type)) /
                       static_cast<double>(refold::block_elements(tensor.type));
        for (const int64_t n : tensor.shape) bytes *= static_cast<double>(n);
        if (tensor.data.empty() || static_cast<double>(tensor.data.size()) != bytes) abort();
        g_sink =
            g_sink + static_cast<unsigned>(tensor.data.front()) + static_cast<unsigned>(tensor.data.back());
    }
}

bool run_one(std::span<const std::byte> bytes) {
    try {
        touch_all(*GgufFile::parse(bytes, "fuzz"));
        return true;
    } catch (const Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    run_one({reinterpret_cast<const std::byte*>(data), size});
    return 0;
}

#ifndef REFOLD_LIBFUZZER

namespace {

constexpr size_t kMaxSeed = 64 << 10;

struct Field {
    size_t offset, width;
};

struct Seed {
    std::string bytes;
    std::vector<Field> fields;  // every number of the header
};

// Finds the fields of a valid file or a prefix of one, independently of the reader under test.
class FieldFinder {
public:
    explicit FieldFinder(Seed& seed) : seed_(seed) {}

    void find() {
        field(4);
        field(4);
        const uint64_t n_tensors = field(8), n_pairs = field(8);
        for (uint64_t i = 0; i < n_pairs && good_; ++i) {
            skip(field(8));
            value(static_cast<GgufType>(field(4)));
        }
        for (uint64_t i = 0; i < n_tensors && good_; ++i) {
            skip(field(8));
            const uint64_t n_dims = field(4);
            for (uint64_t d = 0; d < n_dims && good_; ++d) field(8);
            field(4);
            field(8);
        }
    }

private:
    uint64_t field(size_t width) {
        if (!good_ || width > seed_.bytes.size() - at_) {
            good_ = false;
            return 0;
        }
        seed_.fields.push_back({at_, width});
        uint64_t number = 0;
        memcpy(&number, seed_.bytes.data() + at_, width);
        at_ += width;
        return number;
    }

    void skip(uint64_t size) {
        good_ = good_ && size <= seed_.bytes.size() - at_;
        if (good_) at_ += size;
    }

    void value(GgufType type) {
        switch (type) {
            case GgufType::U8:
            case GgufType::I8:
            case GgufType::Bool: field(1); break;
            case GgufType::U16:
            case GgufType::I16: field(2); break;
            case GgufType::U32:
            case GgufType::I32:
            case GgufType::F32: field(4); break;
            case GgufType::U64:
            case GgufType::I64:
            case GgufType::F64: field(8); break;
            case GgufType::String: skip(field(8)); break;
            case GgufType::Array: {
                const auto element = static_cast<GgufType>(field(4));
                const uint64_t count = field(8);
                for (uint64_t i = 0; i < count && good_; ++i) value(element);
                break;
            }
        }
    }

    Seed& seed_;
    size_t at_ = 0;
    bool good_ = true;
};

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
    const std::string path =
        (std::filesystem::temp_directory_path() / ("refold-fuzz-seed-" + std::to_string(getpid()))).string();
    write_gguf(path, true, m, tensors);
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::filesystem::remove(path);
    return bytes;
}

class Mutator {
public:
    Mutator(const std::vector<Seed>& seeds, uint64_t number) : seeds_(seeds), random_(number) {}

    std::string next() {
        const Seed& seed = seeds_[below(seeds_.size())];
        std::string bytes = seed.bytes;
        const size_t changes = 1 + below(below(4) == 0 ? 12 : 3);
        for (size_t i = 0; i < changes && !bytes.empty(); ++i) change(bytes, seed);
        return bytes;
    }

private:
    size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

    // Numbers at which checks are prone to off-by-one errors and overflow.
    uint64_t extreme(uint64_t old, size_t size) {
        switch (below(16)) {
            case 0: return 0;
            case 1: return 1;
            case 2: return ~uint64_t{0};
            case 3: return ~uint64_t{0} - below(64);
            case 4: return uint64_t{1} << below(64);
            case 5: return (uint64_t{1} << below(64)) - 1;
            case 6: return (uint64_t{1} << 63) + below(64) - 32;
            case 7: return size - below(64);
            case 8: return size + below(64);
            case 9: return old + 1;
            case 10: return old - 1;
            case 11: return old * 2;
            case 12: return uint64_t{0} - old;
            case 13: return below(64);
            case 14: return old ^ (uint64_t{1} << below(64));
            default: return random_();
        }
    }

    void change(std::string& bytes, const Seed& seed) {
        switch (below(8)) {
            case 0: {  // flip a bit
                bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
                break;
            }
            case 1: {  // truncate, often by a few bytes
                const size_t cut = below(below(2) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 64));
                bytes.resize(bytes.size() - cut);
                break;
            }
            case 2: {  // insert a piece of another seed
                const std::string& other = seeds_[below(seeds_.size())].bytes;
                const size_t from = below(other.size()), to = below(bytes.size());
                const size_t size = below(std::min<size_t>({256, other.size() - from, bytes.size() - to}));
                bytes.replace(to, below(2) == 0 ? size : below(size + 1), other, from, size);
                break;
            }
            case 3: {  // overwrite an integer anywhere
                const size_t at = below(bytes.size()),
                             width = std::min<size_t>(size_t{1} << below(4), bytes.size() - at);
                const uint64_t number = extreme(static_cast<unsigned char>(bytes[at]), bytes.size());
                memcpy(bytes.data() + at, &number, width);
                break;
            }
            default: {  // change a field of the header
                if (seed.fields.empty()) break;
                const Field field = seed.fields[below(seed.fields.size())];
                if (field.offset + field.width > bytes.size()) break;
                uint64_t number = 0;
                memcpy(&number, bytes.data() + field.offset, field.width);
                number = extreme(number, bytes.size());
                memcpy(bytes.data() + field.offset, &number, field.width);
            }
        }
    }

    const std::vector<Seed>& seeds_;
    std::mt19937_64 random_;
};

std::string g_current;

// The input that is running when the process is about to die.
void save_current() {
    const char* folder = getenv("TMPDIR");
    const std::string path =
        std::string(folder != nullptr ? folder : "/tmp") + "/refold-fuzz-gguf-crash.gguf";
    if (FILE* file = fopen(path.c_str(), "wb")) {
        fwrite(g_current.data(), 1, g_current.size(), file);
        fclose(file);
        fprintf(stderr, "refold_fuzz_gguf: input written to %s\n", path.c_str());
    }
}

bool run_current() {
    // A copy of exactly this size, so that reads past the end hit AddressSanitizer's red zone.
    const auto* first = reinterpret_cast<const std::byte*>(g_current.data());
    const std::vector<std::byte> exact(first, first + g_current.size());
    return run_one(exact);
}

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    std::vector<Seed> seeds;
    for (const std::string& argument : arguments.files) {
        std::ifstream in(argument, std::ios::binary);
        std::string bytes(kMaxSeed, '\0');
        in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        bytes.resize(static_cast<size_t>(in.gcount()));
        if (bytes.empty()) {
            fprintf(stderr, "refold_fuzz_gguf: cannot read '%s'\n", argument.c_str());
            return 2;
        }
        seeds.push_back({bytes, {}});
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(save_current);
#endif
    uint64_t accepted = 0;
    try {
        const size_t given = seeds.size();
        for (const int n : {0, 1, 4, 40}) seeds.push_back({built_in_seed(n == 4 ? 8 : 32, n), {}});
        for (size_t i = 0; i < seeds.size(); ++i) {
            g_current = seeds[i].bytes;
            if (!run_current() && i >= given) {
                fprintf(stderr, "refold_fuzz_gguf: a built-in file is refused\n");
                return 1;
            }
            FieldFinder(seeds[i]).find();
        }
        Mutator mutator(seeds, arguments.seed);
        for (uint64_t i = 0; i < arguments.iterations; ++i) {
            g_current = mutator.next();
            accepted += run_current();
        }
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_gguf: not allowed to escape: %s\n", error.what());
        save_current();
        return 1;
    }
    printf("refold_fuzz_gguf: %llu inputs, %llu accepted, the others refused with a clear error\n",
           static_cast<unsigned long long>(arguments.iterations), static_cast<unsigned long long>(accepted));
    return 0;
}

#endif  // REFOLD_LIBFUZZER
