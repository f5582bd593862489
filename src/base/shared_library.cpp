#include "base/shared_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace trainer {

void* function_of_library(const char* library, const char* name) {
  // Another call for the same library returns the same handle.
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  void* const function = handle == nullptr ? nullptr : dlsym(handle, name);
  if (function == nullptr) {
    const char* reason = dlerror();
    throw Error(Code::usage,
                format("cannot load {} of {}: {}; install the library, or name its folder in LD_LIBRARY_PATH", name,
                       library, reason == nullptr ? "unknown error" : reason));
  }
  return function;
}

}  // namespace trainer
