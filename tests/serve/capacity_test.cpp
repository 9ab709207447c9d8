#include "serve/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(Capacity, WhatIsOfNoUse) {
    EXPECT_EQ(check_capacity({.slots = 8, .context = 1024, .trained = 2048}), "");
    EXPECT_EQ(check_capacity({.slots = 8, .context = 2048, .kv_tokens = 8 * 2048, .trained = 2048}), "");
    EXPECT_EQ(check_capacity({.slots = 2, .context = 1024, .kv_tokens = 8 * 1024, .trained = 2048}), "");
    EXPECT_THAT(check_capacity({.slots = 8, .context = 2049, .trained = 2048}),
                testing::AllOf(HasSubstr("2049"), HasSubstr("2048")));
    for (const Capacity& useless :
         {Capacity{.slots = 8, .context = 1000, .kv_tokens = 8001, .trained = 2048},
          Capacity{.slots = 2, .context = 2048, .kv_tokens = 400'000, .trained = 2048}}) {
        try {
            check_capacity(useless);
            ADD_FAILURE() << "taken: " << useless.kv_tokens;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::usage);
            EXPECT_THAT(error.what(), HasSubstr("--kv-tokens"));
        }
    }
}

}  // namespace
}  // namespace refold
