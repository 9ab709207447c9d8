#include "generation/logprobs.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

namespace refold {
namespace {

std::vector<int32_t> best(const std::vector<float>& logits, int count) {
    std::vector<int32_t> ids;
    for (const auto& [id, logprob] : token_logprob(logits, 0, count).top) ids.push_back(id);
    return ids;
}

TEST(TokenLogprob, TheBestFirstAndOfEqualOnesTheFirst) {
    const std::vector<float> logits = {1, 3, 3, 2, 3, -INFINITY};
    EXPECT_THAT(best(logits, 0), testing::IsEmpty());
    EXPECT_THAT(best(logits, 2), testing::ElementsAre(1, 2));
    EXPECT_THAT(best(logits, 4), testing::ElementsAre(1, 2, 4, 3));
    EXPECT_THAT(best(logits, 9), testing::ElementsAre(1, 2, 4, 3, 0, 5));
}

}  // namespace
}  // namespace refold
