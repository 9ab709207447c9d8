#include "io/ggml_cpu.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/libraries.h"
#include "core/text.h"
#include "io/ggml_log.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libggml-cpu", kSuffix = ".so";

// The variant of ggml's for each level below the best.
struct LevelVariant {
    std::string_view level, variant;
};
constexpr std::array kLevelVariants = {LevelVariant{"avx512", "skylakex"}, LevelVariant{"avx2", "haswell"},
                                       LevelVariant{"sse4", "sse42"}, LevelVariant{"ssse3", "x64"}};

// "zen4" of ".../libggml-cpu-zen4.so".
std::string variant_of(const fs::path& path) {
    const std::string name = path.filename().string();
    const size_t begin = kPrefix.size() + 1, end = name.size() - kSuffix.size();
    return begin < end ? name.substr(begin, end - begin) : "";
}

std::vector<fs::path> variants_in(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) out.push_back(entry.path());
    }
    return out;
}

// The variants of the first folder that has any.
std::vector<fs::path> find_variants(std::vector<fs::path>& searched) {
    searched = ggml_module_folders();
    for (const fs::path& folder : searched)
        if (auto found = variants_in(folder); !found.empty()) return found;
    return {};
}

// How well a variant suits this CPU; 0: not at all.
int score_of(const fs::path& path) {
    std::string error;
    void* library = load_library(path, error);
    if (library == nullptr) return 0;
    auto* score = reinterpret_cast<int (*)()>(find_symbol(library, "ggml_backend_score"));
    const int out = score == nullptr ? 1 : score();
    unload_library(library);
    return out;
}

fs::path choose_variant(const std::vector<fs::path>& variants) {
    const char* level = std::getenv("REFOLD_CPU");
    for (const auto& [name, variant] : kLevelVariants) {
        if (level == nullptr || name != level) continue;
        for (const fs::path& path : variants)
            if (variant_of(path) == variant && score_of(path) > 0) return path;
    }
    fs::path best;
    int highest = 0;
    for (const fs::path& path : variants) {
        const int score = score_of(path);
        if (score > highest) {
            highest = score;
            best = path;
        }
    }
    return best;
}

class Backend {
public:
    Backend() {
        capture_ggml_log();
        std::vector<fs::path> folders;
        const auto variants = find_variants(folders);
        if (variants.empty()) {
            std::vector<std::string> names;
            for (const fs::path& folder : folders) names.push_back(folder.string());
            fail(ErrorCode::unsupported, "ggml", "no CPU backend (libggml-cpu*.so) in {}",
                 join(names, " or "));
        }
        const fs::path path = choose_variant(variants);
        if (path.empty())
            fail(ErrorCode::unsupported, "ggml", "none of the CPU backends in {} runs on this CPU",
                 variants.front().parent_path().string());
        clear_ggml_errors();
        std::string error;
        // ggml loads it again, which gives the same library.
        library_ = load_library(path, error);
        if (library_ == nullptr || ggml_backend_load(path.c_str()) == nullptr)
            fail(ErrorCode::unsupported, "ggml", "cannot load {}: {}", path.string(),
                 library_ == nullptr ? error : ggml_errors());
        variant_ = variant_of(path);
    }

    const std::string& variant() const { return variant_; }
    void* find(const char* name) const { return find_symbol(library_, name); }
    void* get(const char* name) const {
        void* address = find(name);
        if (address == nullptr)
            fail(ErrorCode::unsupported, "ggml", "the CPU backend has no function '{}'", name);
        return address;
    }

private:
    void* library_ = nullptr;
    std::string variant_;
};

// Never unloaded, because its threads may still run while the process ends.
const Backend& backend() {
    static const auto* const instance = new Backend;
    return *instance;
}

}  // namespace

std::vector<fs::path> ggml_module_folders() {
    std::vector<fs::path> folders = library_folders();
    if (const char* first = std::getenv("REFOLD_GGML_MODULES"); first != nullptr && *first != '\0')
        folders.emplace(folders.begin(), first);
    folders.emplace_back(REFOLD_GGML_BACKENDS);
    return folders;
}

void load_ggml_cpu() { backend(); }

std::string ggml_cpu_variant() { return backend().variant(); }

void* ggml_cpu_function(const char* name) { return backend().find(name); }

}  // namespace refold

// The functions of <ggml-cpu.h> that refold calls: the loaded backend's.
#define REFOLD_FORWARD(result, name, parameters, arguments)                                             \
    result name parameters {                                                                            \
        static const auto function = reinterpret_cast<decltype(&(name))>(refold::backend().get(#name)); \
        return function arguments;                                                                      \
    }

extern "C" {
REFOLD_FORWARD(void, ggml_cpu_init, (), ())
REFOLD_FORWARD(int, ggml_cpu_has_avx2, (), ())
REFOLD_FORWARD(int, ggml_cpu_has_amx_int8, (), ())
REFOLD_FORWARD(int, ggml_cpu_has_fp16_va, (), ())
REFOLD_FORWARD(const ggml_type_traits_cpu*, ggml_get_type_traits_cpu, (ggml_type type), (type))
REFOLD_FORWARD(ggml_threadpool*, ggml_threadpool_new, (ggml_threadpool_params * parameters), (parameters))
REFOLD_FORWARD(void, ggml_threadpool_free, (ggml_threadpool * pool), (pool))
REFOLD_FORWARD(void, ggml_threadpool_pause, (ggml_threadpool * pool), (pool))
REFOLD_FORWARD(void, ggml_threadpool_resume, (ggml_threadpool * pool), (pool))
REFOLD_FORWARD(ggml_cplan, ggml_graph_plan, (const ggml_cgraph* graph, int threads, ggml_threadpool* pool),
               (graph, threads, pool))
REFOLD_FORWARD(ggml_status, ggml_graph_compute, (ggml_cgraph * graph, ggml_cplan* plan), (graph, plan))
REFOLD_FORWARD(ggml_status, ggml_graph_compute_with_ctx,
               (ggml_context * context, ggml_cgraph* graph, int threads), (context, graph, threads))
}
