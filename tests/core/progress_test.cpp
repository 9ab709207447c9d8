#include "core/progress.h"

#include <gtest/gtest.h>

#include "core/progress_observer.h"

namespace refold {
namespace {

TEST(Progress, RemarksAreMadeOnce) {
    testing::internal::CaptureStderr();
    for (const char* text : {"one", "two", "one"}) remark(text);
    {
        const ProgressObserver observer([](const ProgressUpdate&) { return true; });
        remark("of a library's caller");
    }
    set_progress_style(ProgressStyle::none);
    remark("quiet");
    set_progress_style(ProgressStyle::automatic);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "one\ntwo\n");
}

}  // namespace
}  // namespace refold
