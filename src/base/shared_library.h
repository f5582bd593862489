#pragma once
// Shared libraries that are loaded when they are first used, so that a program that does not need them starts without
// them: on a machine that lacks them, and without the time and memory that they take.
namespace trainer {

/// Returns the function `name` of a library, which stays loaded. Throws Code::usage with the loader's reason if the
/// library or the function is missing.
void* function_of_library(const char* library, const char* name);

}  // namespace trainer

/// Defines a C function of a library that headers declare: the first call loads the library.
#define TRAINER_FUNCTION_OF_LIBRARY(library, result, name, parameters, arguments)                                 \
  extern "C" result name parameters {                                                                             \
    static const auto function = reinterpret_cast<decltype(&name)>(trainer::function_of_library(library, #name)); \
    return function arguments;                                                                                    \
  }
