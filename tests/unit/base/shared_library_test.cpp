#include "base/shared_library.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer {
namespace {

TEST(SharedLibrary, FunctionsAreThoseOfTheLibrary) {
  const auto round_down = reinterpret_cast<double (*)(double)>(function_of_library("libm.so.6", "floor"));
  EXPECT_EQ(round_down(2.5), 2);
}

TEST(SharedLibrary, WhatIsMissingIsNamedWithTheLoadersReason) {
  const auto error = [](const char* library, const char* name) -> std::string {
    try {
      function_of_library(library, name);
    } catch (const Error& caught) {
      EXPECT_EQ(caught.code(), Code::usage);
      return caught.what();
    }
    return "";
  };
  EXPECT_EQ(
      error("libnothing.so.7", "open_it").find("cannot load open_it of libnothing.so.7: libnothing.so.7: cannot open"),
      0u);
  EXPECT_EQ(error("libm.so.6", "nothing").find("cannot load nothing of libm.so.6: "), 0u);
}

}  // namespace
}  // namespace trainer
