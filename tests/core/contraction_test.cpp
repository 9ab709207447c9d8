// Products and sums are rounded one by one (-ffp-contract=off), so that copies of a function for several CPUs
// give the same numbers. A precompiled header with other flags undoes that for every file that includes it.
#include <gtest/gtest.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
namespace refold {
namespace {

// Tests are compiled with -O1, which alone contracts nothing.
[[gnu::target("fma"), gnu::noinline, gnu::optimize("expensive-optimizations")]] double sum_of_product(
    double a, double b, double c) {
    return a * b + c;
}

TEST(Contraction, RoundsTheProductFirst) {
    if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no products with sums";
    // The product is 1 - 2^-60, which is rounded to 1.
    EXPECT_EQ(sum_of_product(1 + 0x1p-30, 1 - 0x1p-30, -1), 0);
}

}  // namespace
}  // namespace refold
#endif
