#include "run/step_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/join.h"
#include "base/units.h"
#include "base/utf8.h"
#include "config/load.h"
#include "data/file_parts.h"
#include "data/source.h"
#include "report/printable.h"

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShownTokens = 32;
constexpr size_t kShownCharacters = 48;

std::optional<data::Tokenizer> tokenizer_in(const fs::path& run_folder) {
  std::error_code none;
  for (const char* name : data::kTokenizerFiles)
    if (fs::exists(run_folder / name, none)) return data::Tokenizer::load((run_folder / name).string());
  return std::nullopt;
}

/// Returns the beginning of a text on one line, with control characters escaped.
std::string one_line(const std::string& text) {
  const std::string line = report::replaced(text, [](std::string_view character) {
    return character == "\n"   ? std::string("\\n")
           : character == "\t" ? std::string("\\t")
                               : report::printable(character);
  });
  std::string_view rest = line;
  for (size_t count = 0; count < kShownCharacters && !rest.empty(); ++count) rest.remove_prefix(utf8_character(rest));
  return line.substr(0, line.size() - rest.size());
}

std::string beginning_of(const data::TokenStream& stream, int64_t begin, int64_t end,
                         const std::optional<data::Tokenizer>& tokenizer) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(end - begin, kShownTokens)));
  stream.copy(begin, ids);
  // Models may have more rows than their tokenizer has tokens.
  const bool known =
      tokenizer && std::ranges::all_of(ids, [&](int32_t id) { return id >= 0 && id < tokenizer->vocab_size(); });
  return one_line(known ? tokenizer->decode(ids) : format("{}", fmt::join(ids, " ")));
}

/// Checks that the source has as many tokens as when the step was trained.
void require_same_tokens(const data::NamedDataset& source, bool mixed, const report::StartReport& start,
                         const fs::path& config_file) {
  const auto known = start.sources.find(source.name);
  const int64_t tokens = !mixed ? start.train_tokens : known == start.sources.end() ? 0 : known->second;
  if (source.dataset.tokens() != tokens)
    throw Error(Code::data,
                format("{}: {} training tokens, but {} when the step was trained; restore the data of {}",
                       source.dataset.stream().name(), source.dataset.tokens(), tokens, config_file.string()));
}

}  // namespace

StepSamples samples_of_step(const fs::path& run_folder, int64_t step) {
  StepSamples result{report::read_step(run_folder / "metrics.jsonl", step), {}};
  const report::RecordedStep& recorded = result.recorded;
  const fs::path config_file = run_folder / "config.toml";
  if (recorded.start.model.seq_len == 0)
    throw Error(Code::data,
                format("{}: the start of the process that trained step {} is not recorded; restore the file",
                       (run_folder / "metrics.jsonl").string(), step));
  const std::vector<std::string> sets = {format("run.seed={}", recorded.seed),
                                         format("model.seq_len={}", recorded.start.model.seq_len)};
  const config::Config config = config::load(config_file.string(), sets, {.files = false});
  if (config.data.train.empty() && config.data.source.empty())
    throw Error(Code::config, format("{}: names no training data; restore the file", config_file.string()));
  const data::TrainingData data = data::open_trained_data(config, run_folder / "tokens");
  const std::optional<data::Tokenizer> tokenizer = tokenizer_in(run_folder);
  const std::vector<data::FilePart> parts = data::training_parts(config.data);
  const auto add = [&](const data::NamedDataset& source, int64_t sample) {
    const data::TokenDataset& dataset = source.dataset;
    const config::Data& settings = std::ranges::find(parts, source.name, &data::FilePart::name)->data;
    const auto add_part = [&](int64_t begin, int64_t end, const data::FileSpan& span) {
      const auto text_of = [&](int64_t document) {
        return data::text_of_document(span.file, document, data::text_options(settings));
      };
      result.samples.push_back({source.name, sample, span, text_of(span.first_document), text_of(span.last_document),
                                beginning_of(dataset.stream(), begin, end, tokenizer)});
    };
    for (const data::Excerpt& excerpt : dataset.excerpts(dataset.window_of(sample))) {
      int64_t begin = excerpt.begin;
      for (const data::FileSpan& span : dataset.stream().files_of(begin, excerpt.end())) {
        const int64_t end = begin + span.end - span.begin;
        add_part(begin, end, span);
        begin = end;
      }
    }
  };
  const auto add_all = [&](const data::NamedDataset& source, int64_t first, int64_t last) {
    require_same_tokens(source, data.is_mixed(), recorded.start, config_file);
    for (int64_t sample = first; sample < last; ++sample) add(source, sample);
  };
  if (!data.is_mixed()) add_all(data.sources().front(), recorded.first_sample, recorded.step.data_position);
  for (const auto& [name, seen] : recorded.step.sources) {
    const auto before = recorded.sources_before.find(name);
    const int64_t first = before == recorded.sources_before.end() ? 0 : before->second;
    if (first == seen) continue;
    const auto source = std::ranges::find(data.sources(), name, &data::NamedDataset::name);
    if (source == data.sources().end())
      throw Error(Code::data, format("{}: has no data.source \"{}\", which step {} was trained on",
                                     config_file.string(), name, step));
    add_all(*source, first, seen);
  }
  return result;
}

std::string to_text(const StepSamples& samples) {
  const report::StepReport& step = samples.recorded.step;
  const auto number = [](double value) { return std::isfinite(value) ? format("{:.6g}", value) : "not finite"; };
  std::string text = format("step {}: loss {}, grad_norm {}{}; {} of {} tokens, the last only as a target\n", step.step,
                            number(step.loss), number(step.grad_norm), step.skipped ? ", update skipped" : "",
                            counted(step.data_position - samples.recorded.first_sample, "sample"),
                            samples.recorded.start.model.seq_len + 1);
  std::vector<std::array<std::string, 5>> rows = {{"source", "sample", "tokens", "document", "text"}};
  for (const StepSample& sample : samples.samples) {
    const data::FileSpan& span = sample.span;
    std::string documents = span.first_document < 0 ? "-" : format("{}", span.first_document);
    if (span.last_document > span.first_document) documents += format("-{}", span.last_document);
    if (!sample.text_file.empty()) documents += format(" of {}", report::printable(sample.text_file));
    if (sample.last_text_file != sample.text_file)
      documents += format(" to {}", report::printable(sample.last_text_file));
    rows.push_back({sample.source, format("{}", sample.sample),
                    format("{} {}-{}", report::printable(span.file), span.begin, span.end - 1), documents,
                    sample.beginning});
  }
  std::array<size_t, 5> widths = {};
  for (const auto& row : rows)
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  const bool mixed = !step.sources.empty();
  for (const auto& row : rows) {
    if (mixed) text += format("{:<{}}  ", row[0], widths[0]);
    text += format("{:>{}}  {:<{}}  {:<{}}  {}\n", row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4]);
  }
  return text;
}

}  // namespace trainer::run
