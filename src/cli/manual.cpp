#include "base/format.h"
#include "base/join.h"
#include "cli/command_text.h"

namespace trainer::cli {
namespace {

/// Text as roff takes it. A line must not begin with a dot or a quote.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

std::string paragraph(const std::string& text) { return roff(text) + "\n"; }

std::string option(const OptionText& text) {
  std::string out = ".TP\n";
  std::string separator;
  for (const std::string& name : text.names) {
    out += separator + "\\fB" + roff(name) + "\\fR";
    separator = ", ";
  }
  if (text.names.empty()) {
    out += "\\fI" + roff(text.word) + "\\fR";
  } else if (!text.value.empty()) {
    out += " \\fI" + roff(text.value) + "\\fR";
  }
  out += "\n" + roff(text.help);
  const bool listed = !text.choices.empty() && text.choices.back().back() != '=' && !text.names.empty();
  if (listed) out += roff(format(": {}", fmt::join(text.choices, ", ")));
  if (!text.initial.empty()) out += roff(format(" (default: {})", text.initial));
  return out + ".\n";
}

std::string options(const VerbText& verb) {
  std::string out;
  for (const OptionText& each : verb.options) out += option(each);
  return out;
}

}  // namespace

std::string manual(const CommandText& command, const std::string& version) {
  std::string out = format(".\\\" As `{0} manual` prints it.\n.TH TRAINER 1 \"\" \"{0} {1}\" \"User Commands\"\n",
                           command.name, roff(version));
  out += format(".SH NAME\n{} \\- pretrain GPT\\-style language models\n", command.name);
  out += format(".SH SYNOPSIS\n.B {0}\n.BI \\-\\-config \" FILE\"\n.br\n.B {0}\n.IR VERB \" [\" OPTIONS ]\n",
                command.name);
  out += ".SH DESCRIPTION\n" + paragraph(command.help) + ".SH OPTIONS\nWithout a verb:\n" + options(command);
  out += ".SH VERBS\n";
  for (const VerbText& verb : command.verbs)
    out += format(".SS {} {}\n{}.\n", command.name, verb.name, roff(verb.help)) + options(verb);
  out += ".SH ENVIRONMENT\n.TP\n.B TRAINER_ISA\nthe instruction set to use: plain, avx2, avx512, avx512bf16 or amx.\n";
  out +=
      ".SH FILES\nA run writes into the folder that\n.B run.dir\nof its configuration names: report.html "
      "and\nreport.json, "
      "metrics.jsonl, config.toml, tokenizer.model or tokenizer.json, checkpoints and, where asked for, event files "
      "of\n"
      "TensorBoard and trace.json.\n";
  out += ".SH NOTES\n" + paragraph(command.footer);
  return out;
}

}  // namespace trainer::cli
