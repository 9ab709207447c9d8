// What every stored matrix may become, and how far each of these is from the original matrix.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compress/quantization/input_uses.h"
#include "compress/quantization/unquantized_grams.h"
#include "model/model.h"
#include "model/quantized.h"

namespace refold {

struct Candidate {
    DType type;
    uint64_t bytes = 0;
    // Of the matrix rounded to nearest with weighted scales: the sum over calibration rows of |E x|^2.
    double error = 0;
};

// A stored matrix.
struct FitTensor {
    std::string name;
    Slot slot;  // of its first use
    size_t layer;
    bool table = false;  // embedding or output
    // Rows of a table may have types of their own: [first, first + rows) of rows_by_use(). Else all rows.
    int64_t first = 0, rows = 0;
    std::vector<Candidate> candidates;  // from small to large
};

// The matrices that quantization may change, in the order of the layers that use them first; tables last, cut
// by halves: the less used half of the rows, the less used half of the others, and so on. Their candidates
// are the types that the layout allows, without errors.
std::vector<FitTensor> fit_tensors(const Model& model, RowLayout layout);

// Indices of tensors that get the same type as one another; most are alone. For stock llama.cpp
// (RowLayout::whole_blocks), Q, K and V of a layer belong together where its file has them in one tensor.
std::vector<std::vector<size_t>> of_one_type(const Model& model, const std::vector<FitTensor>& tensors,
                                             RowLayout layout);

// The type that a matrix is disturbed with, to measure how much the model's predictions depend on it.
constexpr DType kProbe = DType::Q4_0;

// The matrices that quantization may change, with everything that is known about them without running them
// again.
class Candidates {
public:
    // Of fit_tensors().
    Candidates(const Model& model, const Measurement& on, RowLayout layout);

    const std::vector<FitTensor>& tensors() const { return tensors_; }
    // The model with one matrix rounded to kProbe.
    Model with_probe(const FitTensor& tensor) const;

private:
    // Of the inputs of the tensor's columns, over all its uses.
    std::vector<double> gram_of(const std::string& tensor) const;
    // By candidate.
    std::vector<float> errors_of(const FitTensor& tensor, const Calibration& calibration) const;

    const Model& model_;
    std::map<std::string, std::vector<UsedRows>> uses_;
    std::optional<UnquantizedGrams> grams_;
    std::vector<FitTensor> tensors_;
};

}  // namespace refold
