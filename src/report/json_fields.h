#pragma once
// Fields of JSON objects as readers of events want them: what is missing keeps its default.
#include "report/events_json.h"

namespace trainer::report {

/// Reads the value under `key`, if there is one.
template <typename T>
void read(const Json& object, const char* key, T& value) {
  if (const auto found = object.find(key); found != object.end()) value = found->template get<T>();
}
inline void read(const Json& object, const char* key, double& value) { value = number_of(object, key); }

/// Returns the object under `key`; an empty one when it is missing.
inline const Json& child(const Json& object, const char* key) {
  static const Json empty = Json::object();
  const auto found = object.find(key);
  return found == object.end() ? empty : *found;
}

}  // namespace trainer::report
