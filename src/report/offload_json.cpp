// Of a step's event: what optimizer offload did.
#include <cmath>

#include "report/json_fields.h"

namespace trainer::report {

Json to_json(const OffloadReport& offload) {
  Json json = {{"gpu_fraction", offload.device_share},
               {"parameters", {{"host", offload.host}, {"streamed", offload.streamed}, {"resident", offload.resident}}},
               {"bytes", offload.bytes},
               {"exposed_ms", offload.exposed_ms},
               {"busy_ms", offload.busy_ms},
               {"update_ms", offload.update_ms},
               {"plan",
                {{"subgroups", offload.subgroups},
                 {"largest", offload.largest_subgroup},
                 {"resident", offload.resident_subgroups},
                 {"slots", offload.slots},
                 {"host_memory", offload.host_memory}}}};
  if (std::isfinite(offload.emulated_ms)) {
    json["emulated"] = {{"update_ms", offload.emulated_ms}, {"predicted_ms", offload.predicted_ms}};
  } else {
    json["predicted_ms"] = offload.predicted_ms;
    json["parameters_per_s"] = offload.parameters_per_s;
    json["overlapped"] = offload.overlapped;
    json["memory_share"] = offload.memory_share;
  }
  return json;
}

OffloadReport offload_from(const Json& object) {
  OffloadReport offload;
  read(object, "gpu_fraction", offload.device_share);
  const Json& parameters = child(object, "parameters");
  read(parameters, "host", offload.host);
  read(parameters, "streamed", offload.streamed);
  read(parameters, "resident", offload.resident);
  read(object, "bytes", offload.bytes);
  read(object, "exposed_ms", offload.exposed_ms);
  read(object, "busy_ms", offload.busy_ms);
  offload.update_ms = number_of(object, "update_ms");
  const Json& emulated = child(object, "emulated");
  offload.emulated_ms = number_of(emulated, "update_ms");
  offload.predicted_ms = number_of(emulated.empty() ? object : emulated, "predicted_ms");
  offload.parameters_per_s = number_of(object, "parameters_per_s");
  offload.overlapped = number_of(object, "overlapped");
  offload.memory_share = number_of(object, "memory_share");
  const Json& plan = child(object, "plan");
  read(plan, "subgroups", offload.subgroups);
  read(plan, "largest", offload.largest_subgroup);
  read(plan, "resident", offload.resident_subgroups);
  read(plan, "slots", offload.slots);
  read(plan, "host_memory", offload.host_memory);
  return offload;
}

}  // namespace trainer::report
