#pragma once
// The section [data].
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::config {

enum class Document { file, line, block, chat };
enum class Bos { automatic, on, off };
/// The windows of a set: consecutive parts of its tokens, or documents packed into them; automatic: packed if they are
/// conversations.
enum class Windows { automatic, stream, best_fit };
enum class Metric { acc, acc_norm, acc_bytes, acc_tokens, core };
enum class DataFormat { automatic, text, jsonl, tokens };

/// A table [[data.source]] or [[data.validation]]: a named set of files. Members that are not set default to [data].
struct FileSet {
  std::string name;
  std::vector<std::string> files;
  std::optional<DataFormat> format;
  std::string text_key;
  std::optional<Document> document;
  std::optional<bool> strict;
  std::optional<Windows> packing;
  std::optional<double> weight;  // only for sources, like max_epochs
  int64_t max_epochs = 0;        // 0: no limit
  int64_t line = 0;              // line in the configuration file, for messages
};

/// The names of Metric, in order.
inline constexpr const char* kMetricNames[] = {"acc", "acc_norm", "acc_bytes", "acc_tokens", "core"};
inline constexpr size_t kMetrics = std::size(kMetricNames);
inline const char* name_of(Metric metric) { return kMetricNames[static_cast<size_t>(metric)]; }

/// A table [[data.task]]: questions that are answered between steps.
struct Task {
  std::string name;
  std::vector<std::string> files;
  int64_t shots = 0;  // other questions with answers before each question
  std::string delimiter = " ";
  Metric metric = Metric::acc_norm;
  double baseline = 0;    // accuracy of guessing
  int64_t questions = 0;  // 0: all
  int64_t line = 0;       // as in FileSet
};

/// A table [[data.phase]]: the weights of the sources after from_tokens training tokens. Sources not listed have
/// weight 0.
struct DataPhase {
  int64_t from_tokens = 0;
  std::map<std::string, double> weights;
  int64_t line = 0;
};

struct Data {
  std::vector<std::string> train, val;
  std::vector<FileSet> source;      // instead of `train`: a weighted mixture
  std::vector<DataPhase> phase;     // changes of the sources' weights, in chronological order
  std::vector<FileSet> validation;  // instead of `val`: named sets
  std::vector<Task> task;
  double val_fraction = 0;                    // resolve() turns a negative number into 0.05, or 0 with other sets
  DataFormat format = DataFormat::automatic;  // the format of files whose names do not determine it
  std::string tokenizer;                      // "train", a path to a .model, or empty
  int64_t vocab_size = 0;
  Bos bos = Bos::automatic;  // if on, each document begins with the tokenizer's BOS token
  std::string text_key;
  Document document = Document::file;
  std::string chat_format;  // a format's name, or "auto"
  bool strict = false;      // invalid UTF-8 is an error instead of being replaced and counted
  Windows packing = Windows::automatic;
  /// Attention sees only the row's own document, and learned positions begin with it. resolve() sets it.
  std::optional<bool> separate_documents;
  bool separates() const { return separate_documents.value_or(false); }
};

}  // namespace trainer::config
