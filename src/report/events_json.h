#pragma once
// Events of metrics.jsonl as JSON values and back. Keys keep the order of events.h.
#include <nlohmann/json.hpp>

#include "report/events.h"

namespace trainer::report {

using Json = nlohmann::ordered_json;

Json to_json(const measure::PhaseMs& phase);
Json to_json(const measure::PeakReport& peak);
Json to_json(const OffloadReport& offload);
/// Each has "event" and "step".
Json to_json(const StartReport& start);
Json to_json(const StepReport& step);
Json to_json(const EvalReport& eval);
Json to_json(const CheckpointReport& checkpoint);
Json to_json(const WarningReport& warning);
Json to_json(const EndReport& end);

/// Returns one line of text. Doubles survive a round trip, NaN and infinity are null, bad UTF-8 is replaced.
std::string to_line(const Json& value, int indent = -1);

/// Returns the number under `key`; NaN when it is null or missing. Throws Json::exception when it is something else.
double number_of(const Json& object, const char* key);

/// Read an event. Missing keys keep their defaults. Throw Json::exception on a value of the wrong kind.
OffloadReport offload_from(const Json& object);
StartReport start_from(const Json& object);
StepReport step_from(const Json& object);
EvalReport eval_from(const Json& object);
CheckpointReport checkpoint_from(const Json& object);
WarningReport warning_from(const Json& object);
EndReport end_from(const Json& object);

}  // namespace trainer::report
