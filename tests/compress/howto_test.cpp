#include <gtest/gtest.h>

#include "compress/howto_methods.h"

namespace refold {
namespace {

TEST(Howto, AMethodIsListedByTheNameOfItsFile) {
    ASSERT_EQ(howto_methods().size(), 1U);
    const Method& method = *howto_methods().front();
    EXPECT_STREQ(method.name, "damp");
    EXPECT_EQ(Options(method, {}).number("factor"), 0.5);
    EXPECT_NE(method.apply, nullptr);
}

}  // namespace
}  // namespace refold
