// Result: a value or an error, and PEAL_TRY between them.
#include "lib/base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace {

using peal::Error;
using peal::Result;

Result<void> failIf(bool fails) {
  if (fails) {
    return Error{pealSystemError, "seen"};
  }
  return {};
}

Result<int> countTo(bool fails, int* reached) {
  PEAL_TRY(failIf(fails));
  *reached += 1;
  return 7;
}

TEST(Result, HoldsAValue) {
  Result<int> result = 3;
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 3);
  *result = 4;
  EXPECT_EQ(*result, 4);
}

TEST(Result, HoldsAnError) {
  const Result<int> result = Error{pealTimeout, "rank 2 has not arrived"};
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, pealTimeout);
  EXPECT_EQ(result.error().message, "rank 2 has not arrived");
}

TEST(Result, AnErrorWithoutACodeIsInternal) { EXPECT_EQ(Error{}.code, pealInternalError); }

TEST(Result, CarriesWhatCanOnlyMove) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  ASSERT_TRUE(result);
  const std::unique_ptr<int> taken = std::move(*result);
  EXPECT_EQ(*taken, 5);
}

TEST(Result, OfVoidIsGoodUnlessGivenAnError) {
  EXPECT_TRUE(failIf(false));
  const Result<void> failed = failIf(true);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, pealSystemError);
}

TEST(Result, TryReturnsTheErrorAndElseGoesOn) {
  int reached = 0;
  const Result<int> good = countTo(false, &reached);
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 7);
  EXPECT_EQ(reached, 1);
  const Result<int> bad = countTo(true, &reached);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "seen");
  EXPECT_EQ(reached, 1);
}

}  // namespace
