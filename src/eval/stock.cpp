#include "eval/stock.h"

#include <ggml-cpu.h>
#include <llama.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "engine/devices.h"
#include "engine/finite_logits.h"
#include "io/ggml_log.h"
#include "model/token_ids.h"
#include "text/llama_log.h"

namespace refold {
namespace {

struct Deleter {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
template <typename T>
using Handle = std::unique_ptr<T, Deleter>;

StockOptions checked(StockOptions o) {
    if (o.threads < 0 || o.threads > GGML_MAX_N_THREADS) {
        fail(ErrorCode::usage, "stock", "threads must be 1 to {}, got {}", GGML_MAX_N_THREADS, o.threads);
    }
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
    if (o.context < 1 || o.context > kMost)
        fail(ErrorCode::usage, "stock", "context out of range: {}", o.context);
    const auto most = static_cast<int64_t>(llama_max_parallel_sequences());
    if (o.sequences < 1 || o.sequences > most || o.context * o.sequences > kMost)
        fail(ErrorCode::usage, "stock", "sequences must be 1 to {}, got {}", most, o.sequences);
    if (o.chunk < 1 || o.chunk > kMost) fail(ErrorCode::usage, "stock", "chunk out of range: {}", o.chunk);
    if (o.threads == 0) o.threads = default_threads();
    o.chunk = std::min(o.chunk, o.context);
    return o;
}

// But the CPU.
std::vector<ggml_backend_device*> handles_of(std::span<const Device> devices) {
    std::vector<ggml_backend_device*> out;
    for (const Device& device : devices)
        if (!device.is_cpu()) out.push_back(device.handle);
    return out;
}

Handle<llama_model> load(const std::string& path, std::span<const Device> devices, int64_t gpu_layers) {
    Handle<llama_model> model(open_llama_model(path, false, handles_of(devices), gpu_layers));
    if (!model) fail(ErrorCode::unsupported, "stock", "libllama cannot load '{}': {}", path, ggml_errors());
    return model;
}

Handle<llama_context> make_context(llama_model* model, const StockOptions& o, bool on_device) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(o.context * o.sequences);
    params.n_seq_max = static_cast<uint32_t>(o.sequences);
    params.n_batch = params.n_ubatch = static_cast<uint32_t>(o.chunk);
    params.n_threads = params.n_threads_batch = o.threads;
    params.type_k = params.type_v = static_cast<ggml_type>(element_type(o.kv));
    params.flash_attn_type = o.flash_attention ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.offload_kqv = params.op_offload = on_device;
    params.no_perf = true;
    Handle<llama_context> context(llama_init_from_model(model, params));
    if (!context) fail(ErrorCode::unsupported, "stock", "libllama cannot make a context: {}", ggml_errors());
    return context;
}

Handle<ggml_threadpool> make_pool(int threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    Handle<ggml_threadpool> pool(ggml_threadpool_new(&params));
    if (!pool) fail(ErrorCode::io, "stock", "cannot start {} threads", threads);
    return pool;
}

}  // namespace

struct StockLlama::Impl {
    Impl(const std::string& path, const StockOptions& given)
        : options(checked(given)),
          devices(find_devices(options.device, options.workers)),
          model(load(path, devices, options.gpu_layers)),
          pool(make_pool(options.threads)),
          context(make_context(model.get(), options, !handles_of(devices).empty())),
          n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(model.get()))) {
        llama_attach_threadpool(context.get(), pool.get(), nullptr);
    }

    void check(std::span<const int32_t> tokens) const {
        if (tokens.empty()) fail(ErrorCode::usage, "stock", "no tokens given");
        if (const auto count = static_cast<int64_t>(tokens.size()); length + count > options.context) {
            fail(ErrorCode::input, "stock",
                 "{} tokens do not fit: {} of {} are used - raise --context or shorten the text", count,
                 length, options.context);
        }
        check_token_ids(tokens, n_vocab, "stock");
    }

    // Appends one chunk; logits of all its tokens, of the last one or of none.
    enum class Output { none, last, all };
    void step(std::span<const int32_t> tokens, Output output) {
        check_interrupt();
        flags.assign(tokens.size(), output == Output::all ? 1 : 0);
        if (output == Output::last) flags.back() = 1;
        // libllama does not write to the tokens.
        llama_batch batch{};
        batch.n_tokens = static_cast<int32_t>(tokens.size());
        batch.token = const_cast<llama_token*>(tokens.data());
        batch.logits = flags.data();
        decode(batch);
        length += batch.n_tokens;
    }

    void decode(const llama_batch& batch) {
        clear_ggml_errors();
        if (const int32_t status = llama_decode(context.get(), batch); status != 0) {
            fail(ErrorCode::unsupported, "stock", "llama_decode failed with {}: {}", status, ggml_errors());
        }
    }

    StockOptions options;
    std::vector<Device> devices;  // open while the model is
    Handle<llama_model> model;
    Handle<ggml_threadpool> pool;  // declared before the context, which uses it until its end
    Handle<llama_context> context;
    int64_t n_vocab;
    int64_t length = 0;
    std::vector<int8_t> flags;
};

StockLlama::StockLlama(const std::string& gguf_path, const StockOptions& options)
    : impl_(std::make_unique<Impl>(gguf_path, options)) {}
StockLlama::~StockLlama() = default;

std::span<const float> StockLlama::evaluate(std::span<const int32_t> tokens) {
    impl_->check(tokens);
    const auto chunk = static_cast<size_t>(impl_->options.chunk);
    for (; tokens.size() > chunk; tokens = tokens.subspan(chunk)) {
        impl_->step(tokens.first(chunk), Impl::Output::none);
    }
    impl_->step(tokens, Impl::Output::last);
    const std::span<const float> logits(llama_get_logits_ith(impl_->context.get(), -1),
                                        static_cast<size_t>(impl_->n_vocab));
    check_finite_logits(logits, impl_->n_vocab, [&](int64_t) { return impl_->length - 1; });
    return logits;
}

std::vector<float> StockLlama::evaluate_all(std::span<const int32_t> tokens) {
    impl_->check(tokens);
    const auto chunk = static_cast<size_t>(impl_->options.chunk);
    std::vector<float> all;
    all.reserve(tokens.size() * static_cast<size_t>(impl_->n_vocab));
    for (size_t first = 0; first < tokens.size(); first += chunk) {
        const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
        impl_->step(part, Impl::Output::all);
        const float* logits = llama_get_logits(impl_->context.get());
        all.insert(all.end(), logits, logits + part.size() * static_cast<size_t>(impl_->n_vocab));
    }
    check_finite_logits(all, impl_->n_vocab, [](int64_t row) { return row; });
    return all;
}

std::span<const float> StockLlama::step(std::span<const StockRow> rows) {
    check_interrupt();
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    std::vector<llama_seq_id> sequences;
    for (const StockRow& row : rows) {
        tokens.push_back(row.token);
        positions.push_back(row.position);
        sequences.push_back(row.sequence);
    }
    std::vector<int32_t> counts(rows.size(), 1);
    std::vector<llama_seq_id*> by_token;
    for (llama_seq_id& sequence : sequences) by_token.push_back(&sequence);
    std::vector<int8_t> wanted(rows.size(), 1);
    llama_batch batch{};
    batch.n_tokens = static_cast<int32_t>(rows.size());
    batch.token = tokens.data();
    batch.pos = positions.data();
    batch.n_seq_id = counts.data();
    batch.seq_id = by_token.data();
    batch.logits = wanted.data();
    impl_->decode(batch);
    return {llama_get_logits(impl_->context.get()), rows.size() * static_cast<size_t>(impl_->n_vocab)};
}

void StockLlama::truncate(int32_t sequence, int32_t length) {
    llama_memory_seq_rm(llama_get_memory(impl_->context.get()), sequence, length, -1);
}

void StockLlama::clear() {
    llama_memory_clear(llama_get_memory(impl_->context.get()), false);
    impl_->length = 0;
}

int64_t StockLlama::n_vocab() const { return impl_->n_vocab; }
void StockLlama::pause() { ggml_threadpool_pause(impl_->pool.get()); }
void StockLlama::resume() { ggml_threadpool_resume(impl_->pool.get()); }

}  // namespace refold
