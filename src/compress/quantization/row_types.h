// Rows of embedding and output in several types: the tokens that text needs most get the finer ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/calibration.h"
#include "compress/quantization/type_choice.h"

namespace refold {

// The probability that a token of text is the one of each row, from how often each occurs in the calibration
// text; ids past its end never do. Tokens that do not occur have the part of the text that those have which
// occur once (Good 1953, "The population frequencies of species and the estimation of population
// parameters"), in equal shares. All alike when nothing was counted.
std::vector<double> expected_use(std::span<const int64_t> occurrences, int64_t rows);
// The rows from the most used to the least used one, those of the same use ascending.
std::vector<int32_t> rows_by_use(std::span<const int64_t> occurrences, int64_t rows);

// Cuts the tables for which `wanted` has several types, for choose_types(). Without a calibration (a dry run)
// only the shapes are right. Throws as choose_types(), and Error(usage) for tables that consist of factors or
// have too few rows.
Model with_rows_cut(const Model& model, const WantedTypes& wanted, const Calibration* calibration);

}  // namespace refold
