// Results of long computations on weights, kept on disk until the model is written: memory is bounded by what
// is being computed, and an interrupted run finds what it had finished.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// A tensor in ggml's order of dimensions (shape[0] contiguous): float32, or packed in another type.
struct Array {
    std::vector<int64_t> shape;
    std::vector<float> values;
    DType type = DType::F32;
    std::vector<std::byte> packed = {};  // of other types
};
using Arrays = std::map<std::string, Array>;

// A computation whose results are kept. The constant lies beside the function that computes; raise `version`
// when that function gives other numbers for the same inputs.
struct Computation {
    const char* name;
    int version;
};

// Identifies a result: its computation, and a JSON object of the settings that it depends on. A result that
// depends on activations has Step::identity among these.
struct ResultKey {
    Computation computation;
    nlohmann::json inputs = nlohmann::json::object();

    std::string text() const;
};

class Work {
public:
    // Results lie in `folder`, which is made when the first one is stored. Empty: in a temporary folder that
    // goes when this object and all tensors are gone.
    explicit Work(std::string folder = "");
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    // The result of compute(), as mapped tensors. It is kept under the key and the hash of `input`;
    // a result that an earlier run left in the folder is used again. Thread-safe; results of different inputs
    // are computed side by side. Throws what compute() throws, Error(io) when the disk is full.
    std::map<std::string, Tensor> results(const ResultKey& key, std::span<const float> input,
                                          const std::function<Arrays()>& compute);
    // The same for a result that the processes of group() compute together: all of them call this in the same
    // order, and all get what the first one has of an earlier run.
    std::map<std::string, Tensor> results_of_all(const ResultKey& key,
                                                 const std::function<Arrays()>& compute);
    // The same for the results of several keys, each of which one process computes alone: compute(i) for the
    // key at i, in ascending order. `done` is called as often as there are keys.
    std::vector<std::map<std::string, Tensor>> results_shared_out(
        std::span<const ResultKey> keys, const std::function<Arrays(size_t)>& compute,
        const std::function<void()>& done);
    // A result that is kept already; of several processes all get what the first one has, and all must ask.
    std::optional<std::map<std::string, Tensor>> kept(const ResultKey& key);
    // A folder for other files of a computation, such as checkpoints, which go with the results. Made by
    // whoever writes to it. Throws Error(io).
    std::string subfolder(const std::string& name) { return path() + "/" + name; }
    // How many results() of this object came from an earlier run.
    size_t reused() const { return reused_; }
    // The computations that were asked for since begin(), with their versions: later steps depend on their
    // results.
    std::string computations() const;
    // A run of steps begins.
    void begin();
    // Deletes the folder: the model is written.
    void finish();

private:
    std::string path();
    void take_first(const ResultKey& key);
    std::string file_of(const ResultKey& key, std::span<const float> input);

    std::string folder_;
    bool temporary_;
    mutable std::mutex mutex_;
    size_t reused_ = 0;
    std::set<std::string> computations_;
};

// The same values in another float type (F32, F16 or BF16), converted when they are read.
Tensor as_type(const Tensor& tensor, DType type);

}  // namespace refold
