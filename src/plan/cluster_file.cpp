// Reading and writing cluster files: profiles and descriptions of clusters.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/files.h"
#include "base/join.h"
#include "config/suggest.h"
#include "config/toml_reader.h"
#include "plan/cluster.h"

namespace trainer::plan {
namespace {

using config::TomlNode;
using config::TomlTable;

[[noreturn]] void refuse(const std::string& path, const TomlNode& at, const std::string& what) {
  throw Error(Code::config, format("{}:{}:{}: {}{}{}: {}", path, at.line, at.column, at.section,
                                   at.name.empty() ? "" : ".", at.name, what));
}

/// Throws an error for a value, naming its line and key.
[[noreturn]] void refuse_value(const std::string& path, TomlNode node, const std::string& what) {
  node.line = node.value_line;
  node.column = node.value_column;
  refuse(path, node, what);
}

/// Reader reads the values of one table; end() rejects keys that were not read.
class Reader {
 public:
  Reader(const std::string& path, const TomlTable& table) : path_(path), table_(table) {
    here_.section = table.name;
    here_.line = table.line;
    here_.column = 1;
  }

  bool has(const char* name) const { return find(name) != nullptr; }
  std::string text(const char* name) {
    const TomlNode& node = need(name, "a string");
    if (const auto* value = std::get_if<std::string>(&node.value)) return *value;
    refuse_value(path_, node, "expected a string, found " + node.shown);
  }
  std::string text(const char* name, const std::string& otherwise) { return known(name) ? text(name) : otherwise; }
  /// Reads a number above 0, or with `zero` a number of at least 0.
  double number(const char* name, bool zero = false) {
    constexpr const char* kExpected[] = {"a number above 0 and at most 1e15", "a number from 0 to 1e15"};
    const TomlNode& node = need(name, kExpected[zero]);
    const auto* integer = std::get_if<int64_t>(&node.value);
    const auto* real = std::get_if<double>(&node.value);
    const double value = integer != nullptr ? static_cast<double>(*integer) : real != nullptr ? *real : -1;
    if (!std::isfinite(value) || value < 0 || value > 1e15 || (value == 0 && !zero))
      refuse_value(path_, node, format("expected {}, found {}", kExpected[zero], node.shown));
    return value;
  }
  double number_or(const char* name, double otherwise) { return known(name) ? number(name, true) : otherwise; }
  double positive_or(const char* name, double otherwise) { return known(name) ? number(name) : otherwise; }
  /// Reads a number above 0 and at most 1.
  double share_or(const char* name, double otherwise) {
    const double value = positive_or(name, otherwise);
    if (value > 1)
      refuse_value(path_, *find(name), "expected a number above 0 and at most 1, found " + find(name)->shown);
    return value;
  }
  int integer(const char* name) {
    const double value = number(name);
    if (value != std::floor(value) || value > 1e6)
      refuse_value(path_, *find(name), "expected an integer up to 1000000, found " + find(name)->shown);
    return static_cast<int>(value);
  }
  int integer_or(const char* name, int otherwise) { return known(name) ? integer(name) : otherwise; }
  template <typename T>
  T one_of(const char* name, const std::vector<std::pair<std::string, T>>& values) {
    const std::string word = text(name);
    std::vector<std::string> names;
    for (const auto& [each, value] : values) {
      if (each == word) return value;
      names.push_back(each);
    }
    refuse_value(
        path_, *find(name),
        format("expected {}, found \"{}\"{}", fmt::join(names, ", "), word, config::did_you_mean(word, names)));
  }
  void end() const {
    for (const TomlNode& node : table_.values)
      if (std::ranges::count(known_, node.name) == 0)
        refuse(path_, node,
               "unknown key; expected one of " + format("{}", fmt::join(known_, ", ")) +
                   config::did_you_mean(node.name, known_));
  }

 private:
  const TomlNode* find(std::string_view name) const {
    const auto found = std::ranges::find_if(table_.values, [&](const TomlNode& node) { return node.name == name; });
    return found == table_.values.end() ? nullptr : &*found;
  }
  bool known(const char* name) {
    known_.emplace_back(name);
    return has(name);
  }
  const TomlNode& need(const char* name, const char* expected) {
    if (std::ranges::count(known_, std::string(name)) == 0) known_.emplace_back(name);
    if (const TomlNode* node = find(name)) return *node;
    TomlNode missing = here_;
    missing.name = name;
    refuse(path_, missing, format("missing; expected {}", expected));
  }

  const std::string& path_;
  const TomlTable& table_;
  TomlNode here_;
  std::vector<std::string> known_;
};

const std::vector<std::pair<std::string, DType>>& computes() {
  static const std::vector<std::pair<std::string, DType>> all = {
      {"bf16", DType::bf16}, {"fp32", DType::f32}, {"fp64", DType::f64}};
  return all;
}

/// A number in a table, whose unit in the file may differ from the program's.
struct Field {
  enum class Kind { needed, from_zero, positive, share } kind;
  const char* name;
  double* value;
  double unit = 1;  // value of the file's unit in the program's unit
  double otherwise = 0;
};
using enum Field::Kind;
constexpr double kGiga = 1e9, kTera = 1e12, kGib = 1 << 30, kMicro = 1e-6;

std::vector<Field> fields(Link& link) {
  return {{needed, "gb_per_s", &link.gb_per_s},
          {from_zero, "start_us", &link.start_us},
          {from_zero, "hop_us", &link.hop_us},
          {from_zero, "slowdown", &link.slowdown},
          {share, "progress", &link.progress, 1, 1}};
}
std::vector<Field> fields(Host& host) {
  return {{needed, "memory_gib", &host.memory_bytes, kGib},
          {needed, "memory_gb_per_s", &host.memory_rate, kGiga},
          {needed, "to_device_gb_per_s", &host.to_device, kGiga},
          {needed, "to_host_gb_per_s", &host.to_host, kGiga},
          {needed, "gparams_per_s", &host.updates, kGiga}};
}
std::vector<Field> fields_of_device(Cluster& c) {
  return {{needed, "memory_gib", &c.memory_bytes, kGib},
          {needed, "memory_gb_per_s", &c.memory_rate, kGiga},
          {positive, "memory_share", &c.memory_share, 1, 1},
          {from_zero, "operator_us", &c.operator_seconds, kMicro},
          {share, "efficiency", &c.efficiency, 1, 1},
          {from_zero, "half_m", &c.half_m},
          {from_zero, "half_k", &c.half_k},
          {from_zero, "half_n", &c.half_n},
          {from_zero, "units", &c.units},
          {positive, "tile_m", &c.tile_m, 1, 256},
          {positive, "tile_n", &c.tile_n, 1, 128},
          {positive, "attention", &c.attention, 1, 1},
          {positive, "in_step_forward", &c.in_step[0], 1, 1},
          {positive, "in_step_dx", &c.in_step[1], 1, 1},
          {positive, "in_step_dw", &c.in_step[2], 1, 1},
          {positive, "in_step_attention", &c.attention_in_step, 1, 1}};
}
std::vector<Field> fields(ProductPoint& p) {
  return {{needed, "m", &p.m}, {needed, "k", &p.k}, {needed, "n", &p.n}, {needed, "tflops", &p.flops, kTera}};
}
std::vector<Field> fields(AttentionPoint& p) {
  return {{needed, "length", &p.length}, {needed, "head_dim", &p.head_dim}, {needed, "tflops", &p.flops, kTera}};
}

void read(Reader& in, const std::vector<Field>& fields) {
  for (const auto& [kind, name, value, unit, otherwise] : fields)
    *value = unit * (kind == needed      ? in.number(name)
                     : kind == from_zero ? in.number_or(name, otherwise)
                     : kind == share     ? in.share_or(name, otherwise)
                                         : in.positive_or(name, otherwise));
}

void read_cluster_table(Reader& in, Cluster& c) {
  c.name = in.text("name");
  c.source = in.text("source", "");
  c.measured = in.has("ranks");
  c.ranks = in.integer_or("ranks", 0);
  c.devices_per_node = in.integer("devices_per_node");
  c.lanes = in.integer_or("lanes", 3);
  c.skew = in.number_or("skew", 1);
  c.price_per_gpu_hour = in.number_or("price_per_gpu_hour", 0);
}

void read_device(Reader& in, Cluster& c) {
  c.device = in.text("name");
  c.cpu = in.one_of<bool>("kind", {{"cpu", true}, {"gpu", false}});
  read(in, fields_of_device(c));
  for (const auto& [name, compute] : computes())
    if (const double peak = in.number_or(("tflops_" + name).c_str(), 0) * kTera; peak > 0) c.peaks[compute] = peak;
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& path) {
  Cluster c;
  c.path = path;
  std::vector<TomlTable> tables;
  try {
    tables = config::read_toml_tables(text);
  } catch (const config::TomlMistake& mistake) {
    throw Error(Code::config, format("{}:{}:{}: {}", path, mistake.line, mistake.column, mistake.text));
  }
  std::vector<std::pair<std::string, CommOp>> operations;
  for (int op = 0; op < kCommOps; ++op)
    operations.emplace_back(name_of(static_cast<CommOp>(op)), static_cast<CommOp>(op));
  const std::vector<std::pair<std::string, ProductForm>> forms = {
      {"forward", ProductForm::forward}, {"dx", ProductForm::dx}, {"dw", ProductForm::dw}};
  std::vector<std::pair<std::string, OpKind>> kinds;
  for (int i = 0; i < kOpKinds; ++i)
    if (const auto kind = static_cast<OpKind>(i); !is_product(kind) && kind != OpKind::attention)
      kinds.emplace_back(name_of(kind), kind);
  const std::vector<std::string> names = {"cluster",  "device", "host",  "product",   "attention",
                                          "operator", "intra",  "inter", "collective"};
  std::vector<std::string> found;
  for (const TomlTable& table : tables) {
    Reader in(path, table);
    found.push_back(table.name);
    if (table.name == "cluster") {
      read_cluster_table(in, c);
    } else if (table.name == "device") {
      read_device(in, c);
    } else if (table.name == "intra" || table.name == "inter") {
      read(in, fields(table.name == "intra" ? c.intra : c.inter));
    } else if (table.name == "host") {
      read(in, fields(c.host));
    } else if (table.name == "product") {
      ProductPoint& point = c.products.emplace_back();
      point.compute = in.one_of<DType>("compute", computes());
      point.form = in.one_of<ProductForm>("form", forms);
      read(in, fields(point));
    } else if (table.name == "attention") {
      AttentionPoint& point = c.attentions.emplace_back();
      point.compute = in.one_of<DType>("compute", computes());
      point.backward = in.one_of<bool>("pass", {{"forward", false}, {"backward", true}});
      read(in, fields(point));
    } else if (table.name == "operator") {
      const auto kind = in.one_of<OpKind>("kind", kinds);
      if (!c.operators.emplace(kind, in.number("gb_per_s") * 1e9).second)
        throw Error(Code::config, format("{}:{}:1: operator: a second table of kind \"{}\"; keep one of them", path,
                                         table.line, name_of(kind)));
    } else if (table.name == "collective") {
      c.collectives.push_back({.op = in.one_of<CommOp>("op", operations),
                               .ranks = in.integer("ranks"),
                               .per_node = in.integer("per_node"),
                               .bytes = in.number("bytes"),
                               .seconds = in.number("us") * 1e-6});
    } else {
      throw Error(Code::config, format("{}:{}:1: {}: unknown table; expected one of {}{}", path, table.line, table.name,
                                       fmt::join(names, ", "), config::did_you_mean(table.name, names)));
    }
    in.end();
  }
  for (const char* needed : {"cluster", "device"})
    if (std::ranges::count(found, needed) == 0)
      throw Error(
          Code::config,
          format(
              "{}: the table [{}] is missing; expected a cluster file such as those in configs/clusters/, or a profile",
              path, needed));
  if (c.peaks.empty())
    throw Error(Code::config, format("{}: device: no peak; add tflops_bf16, tflops_fp32 or tflops_fp64", path));
  if (c.devices_per_node > 1 && c.intra.gb_per_s == 0)
    throw Error(Code::config, format("{}: the table [intra] is missing; add it, since {} devices share a node", path,
                                     c.devices_per_node));
  return c;
}

std::string cluster_text(const std::string& path) {
  return read_text_file(path,
                        "a cluster file such as those in configs/clusters/, or a profile of this machine, which "
                        "`trainer bench all --write-profile FILE` writes");
}

Cluster read_cluster(const std::string& path) { return parse_cluster(cluster_text(path), path); }

// Twelve digits exceed the precision of any measurement, yet are few enough that reading and rewriting a file yields
// the same text.
std::string to_toml(const Cluster& cluster) {
  Cluster c = cluster;  // fields point into it
  std::string out;
  const auto number = [&](const std::string& key, double value) { out += format("{} = {:.12g}\n", key, value); };
  const auto text = [&](const char* key, std::string_view value) { out += format("{} = \"{}\"\n", key, value); };
  const auto numbers = [&](const std::vector<Field>& fields) {
    for (const Field& field : fields)
      if (field.kind == needed || *field.value != field.otherwise) number(field.name, *field.value / field.unit);
  };
  out += "[cluster]\n";
  text("name", c.name);
  text("source", c.source);
  number("devices_per_node", c.devices_per_node);
  number("lanes", c.lanes);
  if (c.skew != 1) number("skew", c.skew);
  if (c.price_per_gpu_hour > 0) number("price_per_gpu_hour", c.price_per_gpu_hour);
  if (c.measured) number("ranks", c.ranks);
  out += "\n[device]\n";
  text("name", c.device);
  text("kind", c.cpu ? "cpu" : "gpu");
  numbers(fields_of_device(c));
  for (const auto& [compute, peak] : c.peaks) number(format("tflops_{}", name_of(compute)), peak / kTera);
  for (const auto& [name, link] : {std::pair{"intra", &c.intra}, {"inter", &c.inter}}) {
    if (link->gb_per_s == 0) continue;
    out += format("\n[{}]\n", name);
    numbers(fields(*link));
  }
  if (c.host.known()) {
    out += "\n[host]\n";
    numbers(fields(c.host));
  }
  for (ProductPoint& p : c.products) {
    out += "\n[[product]]\n";
    text("compute", name_of(p.compute));
    text("form", name_of(p.form));
    numbers(fields(p));
  }
  for (AttentionPoint& p : c.attentions) {
    out += "\n[[attention]]\n";
    text("compute", name_of(p.compute));
    text("pass", p.backward ? "backward" : "forward");
    numbers(fields(p));
  }
  for (const auto& [kind, rate] : c.operators) {
    out += "\n[[operator]]\n";
    text("kind", name_of(kind));
    number("gb_per_s", rate / kGiga);
  }
  for (const CollectivePoint& p : c.collectives) {
    out += "\n[[collective]]\n";
    text("op", name_of(p.op));
    number("ranks", p.ranks);
    number("per_node", p.per_node);
    number("bytes", p.bytes);
    number("us", p.seconds / kMicro);
  }
  return out;
}

}  // namespace trainer::plan
