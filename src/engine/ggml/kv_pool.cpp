#include "engine/ggml/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace refold {

KvPool::KvPool(const Model& model, int64_t rows, int64_t context, ggml_type type, int32_t loops,
               const DeviceRun* device)
    : prefix_(model.config.n_prefix),
      rows_(rows),
      longest_(prefix_ + context),
      loops_(loops),
      unit_(device == nullptr ? 1 : kDeviceUnit),
      cache_(model, std::vector<int64_t>(model.topology.layers.size(), all_cached()), type, device) {
    for (ggml_tensor* tensor : cache_.layers) {
        if (tensor != nullptr && std::find(tensors_.begin(), tensors_.end(), tensor) == tensors_.end())
            tensors_.push_back(tensor);
    }
    for (int64_t loop = 1; loop < loops_; ++loop) move_cached(0, loop * cached(), prefix_);
}

int64_t KvPool::alignment(int64_t rows) const {
    if (unit_ == 1) return 1;
    int64_t part = longest_;
    while (part % 2 == 0 && part / 2 >= std::max(rows, unit_)) part /= 2;
    return part;
}

int64_t KvPool::gap(int64_t rows, int64_t alignment, size_t& index) const {
    int64_t first = prefix_;
    for (index = 0; index < order_.size(); ++index) {
        const Sequence& next = sequences_[static_cast<size_t>(order_[index])];
        if (next.first - first >= rows) return first;
        first = aligned(next.first + next.rows, alignment);
    }
    return cached() - first >= rows ? first : -1;
}

std::optional<int32_t> KvPool::open(int64_t tokens) {
    const int64_t rows = prefix_ + tokens;
    if (rows > rows_ - used_) return std::nullopt;
    size_t index = 0;
    int64_t first = gap(rows, alignment(rows), index);
    if (first < 0) first = gap(rows, 1, index);
    if (first < 0) {
        defragment();
        first = gap(rows, 1, index);
    }
    const auto closed = std::find_if(sequences_.begin(), sequences_.end(),
                                     [](const Sequence& sequence) { return sequence.rows == 0; });
    const auto id = static_cast<int32_t>(closed - sequences_.begin());
    if (closed == sequences_.end()) sequences_.emplace_back();
    sequences_[static_cast<size_t>(id)] = {first, rows, 0};
    order_.insert(order_.begin() + static_cast<ptrdiff_t>(index), id);
    used_ += rows;
    move_rows(0, first, prefix_);
    return id;
}

void KvPool::close(int32_t sequence) {
    used_ -= at(sequence).rows;
    at(sequence) = {};
    order_.erase(std::find(order_.begin(), order_.end(), sequence));
}

bool KvPool::resize(int32_t sequence, int64_t tokens) {
    Sequence& resized = at(sequence);
    const int64_t rows = prefix_ + tokens, more = rows - resized.rows;
    const auto next = std::find(order_.begin(), order_.end(), sequence) + 1;
    const int64_t end = next == order_.end() ? cached() : sequences_[static_cast<size_t>(*next)].first;
    if (more > rows_ - used_ || resized.first + rows > end) return false;
    used_ += more;
    resized.rows = rows;
    return true;
}

KvPool::Sequence& KvPool::at(int32_t sequence) {
    return const_cast<Sequence&>(std::as_const(*this).at(sequence));
}

const KvPool::Sequence& KvPool::at(int32_t sequence) const {
    const auto index = static_cast<size_t>(sequence);
    if (sequence < 0 || index >= sequences_.size() || sequences_[index].rows == 0)
        fail(ErrorCode::internal, "engine", "sequence {} is not open", sequence);
    return sequences_[index];
}

void KvPool::copy(int32_t from, int32_t to, int64_t tokens) {
    move_rows(at(from).first + prefix_, at(to).first + prefix_, tokens);
    at(to).length = tokens;
}

template <class Function>
void KvPool::for_each_piece(int32_t sequence, int64_t tokens, Function&& function) const {
    for (int64_t loop = 0; loop < loops_; ++loop) {
        const auto row = static_cast<size_t>(loop * cached() + at(sequence).first + prefix_);
        for (ggml_tensor* tensor : tensors_) {
            for (int64_t head = 0; head < tensor->ne[2]; ++head)
                function(tensor, static_cast<size_t>(head) * tensor->nb[2] + row * tensor->nb[1],
                         static_cast<size_t>(tokens) * tensor->nb[1]);
        }
    }
}

uint64_t KvPool::saved_bytes(int64_t tokens) const {
    uint64_t row = 0;
    for (const ggml_tensor* tensor : tensors_) row += static_cast<uint64_t>(tensor->ne[2]) * tensor->nb[1];
    return static_cast<uint64_t>(loops_ * tokens) * row;
}

void KvPool::save(int32_t sequence, int64_t tokens,
                  const std::function<void(std::span<const std::byte>)>& write) const {
    std::vector<std::byte> piece;
    for_each_piece(sequence, tokens, [&](const ggml_tensor* tensor, size_t offset, size_t bytes) {
        piece.resize(bytes);
        ggml_backend_tensor_get(tensor, piece.data(), offset, bytes);
        write(piece);
    });
}

void KvPool::load(int32_t sequence, int64_t tokens, std::span<const std::byte> saved) {
    const std::byte* from = saved.data();
    for_each_piece(sequence, tokens, [&](ggml_tensor* tensor, size_t offset, size_t bytes) {
        ggml_backend_tensor_set(tensor, from, offset, bytes);
        from += bytes;
    });
    at(sequence).length = tokens;
}

void KvPool::share(int32_t sequence, int64_t position, int32_t loop) {
    const int64_t row = at(sequence).first + prefix_ + position;
    for (int64_t later = loop + 1; later < loops_; ++later)
        move_cached(loop * cached() + row, later * cached() + row, 1);
}

void KvPool::defragment() {
    int64_t first = prefix_;
    for (const int32_t id : order_) {
        Sequence& sequence = sequences_[static_cast<size_t>(id)];
        if (sequence.first != first) move_rows(sequence.first, first, prefix_ + sequence.length);
        sequence.first = first;
        first += sequence.rows;
    }
}

void KvPool::move_rows(int64_t from, int64_t to, int64_t count) {
    for (int64_t loop = 0; loop < loops_; ++loop)
        move_cached(loop * cached() + from, loop * cached() + to, count);
}

void KvPool::move_cached(int64_t from, int64_t to, int64_t count) {
    if (count == 0 || from == to) return;
    for (ggml_tensor* tensor : tensors_) {
        if (!ggml_backend_buffer_is_host(tensor->buffer)) {
            move_on_device(tensor, from, to, count);
            continue;
        }
        for (int64_t head = 0; head < tensor->ne[2]; ++head) {
            char* data = static_cast<char*>(tensor->data) + static_cast<size_t>(head) * tensor->nb[2];
            std::memmove(data + static_cast<size_t>(to) * tensor->nb[1],
                         data + static_cast<size_t>(from) * tensor->nb[1],
                         static_cast<size_t>(count) * tensor->nb[1]);
        }
    }
}

// A device copies rows that do not overlap: those of a shorter move than their number in several parts, the
// first ones first, or the last ones. A few rows further, they go by this machine's memory.
void KvPool::move_on_device(ggml_tensor* tensor, int64_t from, int64_t to, int64_t count) {
    constexpr int64_t kMostParts = 16;
    const int64_t most = std::min(count, std::abs(to - from)), parts = (count + most - 1) / most;
    if (parts > kMostParts) {
        std::vector<std::byte> moved(static_cast<size_t>(count) * tensor->nb[1]);
        for (int64_t head = 0; head < tensor->ne[2]; ++head) {
            const auto offset = [&](int64_t row) {
                return static_cast<size_t>(head) * tensor->nb[2] + static_cast<size_t>(row) * tensor->nb[1];
            };
            ggml_backend_tensor_get(tensor, moved.data(), offset(from), moved.size());
            ggml_backend_tensor_set(tensor, moved.data(), offset(to), moved.size());
        }
        return;
    }
    const ggml_context_ptr context = make_context(static_cast<size_t>(2 * parts * tensor->ne[2]));
    const auto view = [&](int64_t head, int64_t row, int64_t rows) {
        ggml_tensor* out = ggml_view_2d(
            context.get(), tensor, tensor->ne[0], rows, tensor->nb[1],
            static_cast<size_t>(head) * tensor->nb[2] + static_cast<size_t>(row) * tensor->nb[1]);
        ggml_backend_view_init(out);
        return out;
    };
    for (int64_t head = 0; head < tensor->ne[2]; ++head) {
        for (int64_t i = 0; i < parts; ++i) {
            const int64_t first = (to < from ? i : parts - 1 - i) * most,
                          rows = std::min(most, count - first);
            ggml_backend_tensor_copy(view(head, from + first, rows), view(head, to + first, rows));
        }
    }
}

}  // namespace refold
