#include "linalg/blas_kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "linalg/blas.h"

namespace refold::blas {
namespace {

#if defined(__x86_64__)
class Kernels : public testing::Test {
protected:
    void SetUp() override {
        if (openblas_get_corename == nullptr || gotoblas_dynamic_quit == nullptr)
            GTEST_SKIP() << "no OpenBLAS with kernels to choose from";
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
            GTEST_SKIP() << "a CPU of SSE3";
        if (const char* set = std::getenv("OPENBLAS_CORETYPE")) before_ = set;
    }
    void TearDown() override {
        if (before_.empty())
            unsetenv("OPENBLAS_CORETYPE");
        else
            take(before_);
    }

    static void take(const std::string& name) {
        setenv("OPENBLAS_CORETYPE", name.c_str(), 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
    }

    std::string before_;
};

TEST_F(Kernels, OfSse3AreReplaced) {
    take("Prescott");
    ASSERT_STREQ(openblas_get_corename(), "Prescott");
    EXPECT_FALSE(choose_kernels()) << "what the user names stays";
    EXPECT_STREQ(openblas_get_corename(), "Prescott");
    unsetenv("OPENBLAS_CORETYPE");
    EXPECT_TRUE(choose_kernels());
    EXPECT_STRNE(openblas_get_corename(), "Prescott");
    // The others are whole.
    constexpr int64_t kSize = 150;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> a(kSize * kSize), b(a), c(a);
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    multiply(Op::plain, Op::plain, {kSize, kSize, kSize}, b.data(), a.data(), c.data());
    for (size_t i = 0; i < kSize; i += 37) {
        for (size_t j = 0; j < kSize; ++j) {
            double sum = 0;
            for (size_t k = 0; k < kSize; ++k)
                sum += static_cast<double>(a[i * kSize + k]) * static_cast<double>(b[k * kSize + j]);
            EXPECT_NEAR(c[i * kSize + j], sum, 1e-4);
        }
    }
}

TEST_F(Kernels, FitTheProcessorFromTheStart) {
    if (before_ == "Prescott") GTEST_SKIP() << "OPENBLAS_CORETYPE=Prescott";
    EXPECT_STRNE(openblas_get_corename(), "Prescott");
}
#endif

}  // namespace
}  // namespace refold::blas
