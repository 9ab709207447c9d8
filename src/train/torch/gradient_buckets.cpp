#include "train/torch/gradient_buckets.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "core/error.h"
#include "train/torch/gradient_hook.h"

namespace refold {
namespace {

// A run of a leaf's elements in a bucket. `owner`: the process that gets their sum, -1: all.
struct Piece {
    size_t leaf;
    int64_t first, count;
    int owner;
    int64_t at;     // in the bucket
    int64_t place;  // in the owner's share
};

struct Bucket {
    std::vector<size_t> leaves;
    std::vector<Piece> pieces;
    int64_t numbers = 0;
    size_t missing = 0;  // leaves without a contribution in this pass
    bool again = false;  // a leaf got more after the bucket was sent
};

// A bucket's sum that was begun.
struct Sent {
    size_t bucket;
    at::Tensor flat;
    std::vector<std::shared_ptr<Processes::Pending>> sums;
};

uint64_t bytes_in(const at::Tensor& x) { return static_cast<uint64_t>(x.numel()) * x.element_size(); }

}  // namespace

// All processes send the same buckets in the same order, each when it is ready, the rest in finish(). Which
// leaves get gradients, and when, may differ between processes. A bucket is ready when each of its leaves has
// a contribution; in a pass they get one, summed over their uses. What comes later (in further passes) is
// left to finish(), where all processes send the buckets again for which any has such a rest.
struct GradientBuckets::State {
    State(std::vector<at::Tensor> all, Processes& p, int64_t bytes)
        : leaves(std::move(all)),
          processes(p),
          bucket_bytes(static_cast<uint64_t>(bytes)),
          bucket_of(leaves.size()),
          seen(leaves.size()),
          holds(leaves.size()) {
        for (size_t i = 0; i < leaves.size(); ++i) {
            const int64_t numbers = leaves[i].numel();
            if (buckets.empty() || (buckets.back().numbers + numbers) * 4 > bytes) buckets.emplace_back();
            Bucket& bucket = buckets.back();
            bucket.leaves.push_back(i);
            bucket.pieces.push_back({i, 0, numbers, -1, bucket.numbers, 0});
            bucket.numbers += numbers;
            bucket_of[i] = buckets.size() - 1;
        }
        if (processes.size() > 1) hook();
    }

    void hook() {
        for (size_t i = 0; i < leaves.size(); ++i) hooks.emplace_back(leaves[i], [this, i] { arrived(i); });
    }

    bool alone() const { return !own.defined() && processes.size() == 1; }

    void share(const Shares& shares, at::Tensor share) {
        own = std::move(share);
        if (hooks.empty()) hook();
        for (Bucket& bucket : buckets) {
            bucket.pieces.clear();
            int64_t at = 0;
            // Together lie the elements of one owner, so that they are one sum.
            for (int owner = 0; owner < processes.size(); ++owner) {
                const int64_t first = shares.first(owner), last = first + shares.count(owner);
                for (const size_t i : bucket.leaves) {
                    const int64_t begin = begin_in(shares, leaves[i]);
                    const int64_t from = std::max(first, begin),
                                  to = std::min(last, begin + leaves[i].numel());
                    if (from >= to) continue;
                    bucket.pieces.push_back({i, from - begin, to - from, owner, at, from - first});
                    at += to - from;
                }
            }
        }
        grow(bytes_in(own));
    }

    static int64_t begin_in(const Shares& shares, const at::Tensor& leaf) {
        for (const auto& [name, x] : shares.leaves())
            if (x.is_same(leaf)) return shares.begin_of(name);
        fail(ErrorCode::internal, "train", "gradients of a tensor that the optimizer does not have");
    }

    void grow(uint64_t bytes) {
        held += bytes;
        peak = std::max(peak, held);
    }

    void arrived(size_t leaf) {
        const std::lock_guard lock(mutex);
        if (!active) return;
        const size_t number = bucket_of[leaf];
        if (!holds[leaf]) {
            holds[leaf] = true;
            grow(bytes_in(leaves[leaf]));
            unsent += bytes_in(leaves[leaf]);
        }
        if (number < begun) buckets[number].again = true;
        if (!seen[leaf]) --buckets[number].missing;
        seen[leaf] = true;
        while (begun < buckets.size() && (buckets[begun].missing == 0 || (own.defined() && too_many(unsent))))
            send(begun++);
    }

    // So many bytes wait for something.
    bool too_many(uint64_t bytes) const { return bytes > 2 * bucket_bytes; }

    void send(size_t number) {
        const c10::NoGradGuard no_gradients;
        const Bucket& bucket = buckets[number];
        Sent sent{number,
                  at::empty({bucket.numbers}, leaves[0].options().dtype(at::kFloat).requires_grad(false)),
                  {}};
        grow(bytes_in(sent.flat));
        for (const Piece& piece : bucket.pieces) {
            at::Tensor part = sent.flat.narrow(0, piece.at, piece.count);
            const at::Tensor& gradient = leaves[piece.leaf].grad();
            if (gradient.defined()) {
                part.copy_(gradient.reshape(-1).narrow(0, piece.first, piece.count));
            } else {
                part.zero_();
            }
        }
        for (const size_t i : bucket.leaves) {
            leaves[i].mutable_grad().reset();
            if (!holds[i]) continue;
            holds[i] = false;
            held -= bytes_in(leaves[i]);
            unsent -= std::min(unsent, bytes_in(leaves[i]));
        }
        const auto& pieces = bucket.pieces;
        for (size_t first = 0, next = 0; first < pieces.size(); first = next) {
            while (next < pieces.size() && pieces[next].owner == pieces[first].owner) ++next;
            const int64_t end = pieces[next - 1].at + pieces[next - 1].count;
            const at::Tensor part = sent.flat.narrow(0, pieces[first].at, end - pieces[first].at);
            sent.sums.push_back(pieces[first].owner < 0 ? processes.begin_sum(part)
                                                        : processes.begin_sum_to(part, pieces[first].owner));
        }
        in_flight_bytes += bytes_in(sent.flat);
        in_flight.push_back(std::move(sent));
        while (own.defined() && in_flight.size() > 1 && too_many(in_flight_bytes)) deliver();
    }

    // The oldest sum.
    void deliver() {
        const c10::NoGradGuard no_gradients;
        const Sent sent = std::move(in_flight.front());
        in_flight.pop_front();
        in_flight_bytes -= bytes_in(sent.flat);
        for (const auto& sum : sent.sums) processes.wait(*sum);
        for (const Piece& piece : buckets[sent.bucket].pieces) {
            const at::Tensor part = sent.flat.narrow(0, piece.at, piece.count);
            const at::Tensor& leaf = leaves[piece.leaf];
            if (piece.owner == processes.rank()) {
                own.narrow(0, piece.place, piece.count).add_(part);
            } else if (piece.owner < 0 && leaf.grad().defined()) {
                leaf.mutable_grad().add_(part.view(leaf.sizes()));
            } else if (piece.owner < 0) {
                leaf.mutable_grad() = part.view(leaf.sizes());
            }
        }
        if (own.defined()) held -= bytes_in(sent.flat);  // else the leaves' gradients are in it
    }

    void begin() {
        std::fill(seen.begin(), seen.end(), false);
        begun = 0;
        unsent = 0;
        for (Bucket& bucket : buckets) {
            bucket.again = false;
            bucket.missing = bucket.leaves.size();
        }
        count_held();
        active = true;
    }

    void count_held() {
        held = own.defined() ? bytes_in(own) : 0;
        for (size_t i = 0; i < leaves.size(); ++i) {
            holds[i] = leaves[i].grad().defined();
            if (holds[i]) held += bytes_in(leaves[i]);
        }
        peak = std::max(peak, held);
    }

    void finish() {
        active = false;
        if (leaves.empty()) return;
        if (alone()) return count_held();
        while (begun < buckets.size()) send(begun++);
        std::vector<float> flags;
        for (const Bucket& bucket : buckets) flags.push_back(bucket.again ? 1.0F : 0.0F);
        at::Tensor again = at::tensor(flags).to(leaves[0].device());
        processes.sum(again);
        again = again.cpu();
        for (size_t b = 0; b < buckets.size(); ++b)
            if (again.data_ptr<float>()[b] > 0) send(b);
        while (!in_flight.empty()) deliver();
    }

    std::vector<at::Tensor> leaves;
    Processes& processes;
    uint64_t bucket_bytes;
    at::Tensor own;  // defined after share()
    std::vector<GradientHook> hooks;
    std::vector<Bucket> buckets;
    std::vector<size_t> bucket_of;

    std::mutex mutex;  // gradients on other devices arrive in other threads
    bool active = false;
    std::vector<bool> seen, holds;  // leaves: with a contribution in this pass; with a gradient now
    size_t begun = 0;               // number of buckets that were sent in this pass
    std::deque<Sent> in_flight;
    uint64_t held = 0, peak = 0;               // bytes of gradients and buckets
    uint64_t unsent = 0, in_flight_bytes = 0;  // parts of them
};

GradientBuckets::GradientBuckets(std::vector<at::Tensor> leaves, Processes& processes, int64_t bucket_bytes)
    : state_(std::make_unique<State>(std::move(leaves), processes, bucket_bytes)) {}
GradientBuckets::~GradientBuckets() = default;
void GradientBuckets::share(const Shares& shares, at::Tensor own) { state_->share(shares, std::move(own)); }
void GradientBuckets::begin() { state_->begin(); }
void GradientBuckets::finish() { state_->finish(); }
uint64_t GradientBuckets::peak_bytes() const { return state_->peak; }

}  // namespace refold
