#include <CLI/CLI.hpp>

#include "base/format.h"
#include "base/join.h"
#include "cli/command_text.h"

namespace trainer::cli {
namespace {

/// Escapes text for roff. A line must not begin with a dot or a quote.
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

std::string options(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name(true, true), value = value_of(*option),
                      initial = option->get_default_str();
    const std::vector<std::string> choices = choices_of(*option);
    out += format(".TP\n\\fB{}\\fR", roff(name));
    if (!value.empty()) out += format(" \\fI{}\\fR", roff(value));
    out += "\n" + roff(option->get_description());
    if (!choices.empty() && !choices.back().ends_with('=')) out += roff(format(": {}", fmt::join(choices, ", ")));
    if (!initial.empty()) out += roff(format(" (default: {})", initial));
    out += ".\n";
  }
  return out;
}

std::string verbs(const CLI::App& app, const std::string& command) {
  std::string out;
  for (const CLI::App* verb : app.get_subcommands(is_shown)) {
    const std::string name = command + " " + verb->get_name();
    out += format(".SS {}\n{}.\n", name, roff(verb->get_description())) + options(*verb) + verbs(*verb, name);
  }
  return out;
}

}  // namespace

std::string manual(const CLI::App& app, const std::string& version) {
  return format(R"(.\" As `{0} manual` prints it.
.TH TRAINER 1 "" "{0} {1}" "User Commands"
.SH NAME
{0} \- pretrain GPT\-style language models
.SH SYNOPSIS
.B {0}
.BI \-\-config " FILE"
.br
.B {0}
.IR VERB " [" OPTIONS ]
.SH DESCRIPTION
{2}
.SH OPTIONS
Without a verb:
{3}.SH VERBS
{4}.SH ENVIRONMENT
.TP
.B TRAINER_ISA
the instruction set to use: plain, avx2, avx512, avx512bf16 or amx.
.SH FILES
A run writes into the folder that
.B run.dir
of its configuration names: report.html and report.json, metrics.jsonl, config.toml, tokenizer.model or tokenizer.json,
checkpoints and, if enabled, TensorBoard event files and trace.json.
.SH NOTES
{5}
)",
                app.get_name(), roff(version), roff(app.get_description()), options(app), verbs(app, app.get_name()),
                roff(app.get_footer()));
}

}  // namespace trainer::cli
