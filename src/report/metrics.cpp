#include "report/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "report/events_json.h"

namespace trainer::report {

void MetricsLog::write(const Json& event) { RecordFile::write(json_text(event) + "\n"); }

void truncate(const std::filesystem::path& file, const LogCut& cut) {
  if (cut.kept == cut.size) return;
  if (!cut.only_the_end_goes) {
    std::string text;
    std::ifstream in(file, std::ios::binary);
    for (std::string line; std::getline(in, line);)
      if (!in.eof() && stays(parse_json<Json>(line), cut.step)) text += line + '\n';
    if (in.bad() || !in.is_open()) throw Error(Code::io, format("cannot read {}", file.string()));
    return replace_file(file, text);
  }
  // Truncating in place works even if the disk is full.
  if (::truncate(file.c_str(), cut.kept) != 0) {
    const int reason = errno;
    throw Error(Code::io,
                format("cannot truncate {} after step {}: {}", file.string(), cut.step, system_reason(reason)));
  }
}

}  // namespace trainer::report
