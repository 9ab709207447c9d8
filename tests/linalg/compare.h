#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/safetensors.h"

namespace refold {

inline std::vector<float> random_values(int64_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    for (float& x : out) x = normal(generator);
    return out;
}

inline double norm(std::span<const float> values) {
    double sum = 0;
    for (const float x : values) sum += static_cast<double>(x) * x;
    return std::sqrt(sum);
}

inline double relative_difference(std::span<const float> got, std::span<const float> expected) {
    double sum = 0;
    for (size_t i = 0; i < expected.size(); ++i)
        sum += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    return got.size() == expected.size() ? std::sqrt(sum) / norm(expected) : 1e9;
}

// Largest deviation of the inner products of `count` vectors from those of orthonormal vectors. Element i of
// vector k is at k * stride + i * step.
inline double not_orthonormal(const std::vector<float>& x, int64_t count, int64_t stride, int64_t step) {
    const auto size = static_cast<int64_t>(x.size()) / count;
    double worst = 0;
    for (int64_t a = 0; a < count; ++a) {
        for (int64_t b = 0; b <= a; ++b) {
            double product = 0;
            for (int64_t i = 0; i < size; ++i) {
                product += static_cast<double>(x[a * stride + i * step]) * x[b * stride + i * step];
            }
            worst = std::max(worst, std::abs(product - (a == b ? 1 : 0)));
        }
    }
    return worst;
}

inline void expect_error(ErrorCode code, const std::string& part, const std::function<void()>& call) {
    try {
        call();
        ADD_FAILURE() << "accepted, expected an error with '" << part << "'";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

class MethodsFixture {
public:
    explicit MethodsFixture(const std::string& name)
        : file_(read_safetensors(std::string(REFOLD_FIXTURES "/methods/") + name + ".safetensors")) {
        std::ifstream in(REFOLD_FIXTURES "/methods/methods.json");
        numbers = nlohmann::json::parse(in).at(name);
    }
    std::vector<float> tensor(const std::string& name) const {
        const auto& bytes = file_.tensors.at(name).data;
        std::vector<float> out(bytes.size() / sizeof(float));
        memcpy(out.data(), bytes.data(), bytes.size());
        return out;
    }
    nlohmann::json numbers;

private:
    SafetensorsFile file_;
};

}  // namespace refold
