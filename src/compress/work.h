// Where long computations on weights leave their results until the model is written: on disk, so that memory
// is bounded by what is being computed and an interrupted run finds again what it had finished.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// A float32 tensor in ggml's order of dimensions (shape[0] contiguous).
struct Array {
    std::vector<int64_t> shape;
    std::vector<float> values;
};
using Arrays = std::map<std::string, Array>;

class Work {
public:
    // Results lie in `folder`, which is made when the first one is stored. Empty: in a temporary folder that
    // goes when this object and all tensors are gone.
    explicit Work(std::string folder = "");
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    // What compute() gives for `input` under the settings that `what` names ("laser v1 rank=57"), as mapped
    // float32 tensors. A result that an earlier run left in the folder is used again. Thread-safe; different
    // inputs are computed side by side. Throws what compute() throws, Error(io) when the disk is full.
    std::map<std::string, Tensor> results(const std::string& what, std::span<const float> input,
                                          const std::function<Arrays()>& compute);
    // The same for what the processes of group() compute together: all of them call this in the same order,
    // and what the first one has of an earlier run all get.
    std::map<std::string, Tensor> results_of_all(const std::string& what,
                                                 const std::function<Arrays()>& compute);
    // How many results() of this object came from an earlier run.
    size_t reused() const { return reused_; }
    // Deletes the folder: the model is written.
    void finish();

private:
    std::string path();
    std::string file_of(const std::string& what, std::span<const float> input);

    std::string folder_;
    bool temporary_;
    std::mutex mutex_;
    size_t reused_ = 0;
};

// The same values in another float type (F32, F16 or BF16), converted when they are read.
Tensor as_type(const Tensor& tensor, DType type);

}  // namespace refold
