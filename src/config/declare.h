#pragma once
// Helpers for the declarations in keys*.cpp: each call binds one key to one struct member.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "config/keys.h"
#include "config/text.h"

namespace trainer::config {

constexpr Range at_least(double min) { return {.min = min}; }
constexpr Range between(double min, double max) { return {.min = min, .max = max}; }
constexpr Range above(double min) { return {.min = min, .open_min = true}; }
constexpr Range fraction() { return {.min = 0, .max = 1, .open_max = true}; }

/// The parts of a declaration that most keys omit.
struct Extra {
  Range range = {};
  std::string unit = {};
  std::string derived = {};
  Value example = {};
  std::vector<StrategyName> strategies = {};
  const Switch* needs = nullptr;
};

/// A key of the tables in a list of tables (such as data.phase), bound to a member of T.
template <typename T>
struct Member : Field {
  std::function<Value(const T&)> get;
  std::function<void(T&, const Value&)> set;
};
template <typename T, typename V>
Member<T> member(const char* name, Type type, V T::*at, Range range = {}) {
  return {{name, type, Value(V()), range, {}},
          [at](const T& t) { return Value(t.*at); },
          [at](T& t, const Value& value) { t.*at = std::get<V>(value); }};
}
/// A value with a default, and an enum with one, as in Declare::choice().
template <typename T, typename V>
Member<T> member(const char* name, Type type, V T::*at, V initial) {
  Member<T> with = member(name, type, at);
  with.initial = Value(std::move(initial));
  return with;
}
template <typename T, typename Enum>
requires std::is_enum_v<Enum> Member<T> choice_member(const char* name, Enum T::*at, Enum initial,
                                                      const StringList& names) {
  return {{name, Type::choice, Value(names[static_cast<size_t>(initial)]), {}, names},
          [at, names](const T& t) { return Value(names[static_cast<size_t>(t.*at)]); },
          [at, names](T& t, const Value& value) {
            t.*at = static_cast<Enum>(std::ranges::find(names, std::get<std::string>(value)) - names.begin());
          }};
}
/// An optional value.
template <typename T, typename V>
Member<T> member(const char* name, Type type, std::optional<V> T::*at, Range range = {}) {
  return {{name, type, Value(), range, {}},
          [at](const T& t) { return t.*at ? Value(*(t.*at)) : Value(); },
          [at](T& t, const Value& value) { t.*at = std::get<V>(value); }};
}
/// An optional enum, as in Declare::choice().
template <typename T, typename Enum>
Member<T> choice_member(const char* name, std::optional<Enum> T::*at, const StringList& names) {
  return {{name, Type::choice, Value(), {}, names},
          [at, names](const T& t) { return t.*at ? Value(names[static_cast<size_t>(*(t.*at))]) : Value(); },
          [at, names](T& t, const Value& value) {
            t.*at = static_cast<Enum>(std::ranges::find(names, std::get<std::string>(value)) - names.begin());
          }};
}

/// An inline table of numbers by name.
template <typename T>
Member<T> weights_member(const char* name, std::map<std::string, double> T::*at) {
  return {{name, Type::weights, Value(TableList{Table{}}), {}, {}},
          [at](const T& t) {
            Table table;
            for (const auto& [key, weight] : t.*at) table.members.push_back({key, weight});
            return Value(TableList{table});
          },
          [at](T& t, const Value& value) {
            for (const TableMember& member : std::get<TableList>(value).front().members)
              (t.*at)[member.name] = std::get<double>(member.value);
          }};
}

/// Declares the keys of one section, whose values are members of `Struct`, itself a member of Config.
template <typename Struct>
class Declare {
 public:
  Declare(std::vector<Key>& keys, std::string section, Struct Config::*part)
      : keys_(keys), section_(std::move(section)), part_(part) {}

  void boolean(const char* name, bool Struct::*member, bool initial, const char* help, Extra extra = {}) {
    bind<bool>(add(name, Type::boolean, initial, help, std::move(extra)), member);
  }
  /// Declare optional keys; `derived` describes how an unset value follows from other keys.
  void boolean(const char* name, std::optional<bool> Struct::*at, std::string derived, const char* help) {
    bind(add(name, Type::boolean, {}, help, {.derived = std::move(derived)}), member(name, Type::boolean, at));
  }
  void integer(const char* name, std::optional<int64_t> Struct::*at, Range range, std::string derived,
               const char* help) {
    bind(add(name, Type::integer, {}, help, {.range = range, .derived = std::move(derived)}),
         member(name, Type::integer, at));
  }
  template <typename Enum>
  void choice(const char* name, std::optional<Enum> Struct::*at, StringList names, std::string derived,
              const char* help) {
    Key& key = add(name, Type::choice, {}, help, {.derived = std::move(derived)});
    bind(key, choice_member(name, at, names));
    key.names = std::move(names);
  }
  void integer(const char* name, int64_t Struct::*member, int64_t initial, Extra extra, const char* help) {
    bind<int64_t>(add(name, Type::integer, initial, help, std::move(extra)), member);
  }
  void number(const char* name, double Struct::*member, double initial, Extra extra, const char* help) {
    bind<double>(add(name, Type::number, initial, help, std::move(extra)), member);
  }
  void string(const char* name, std::string Struct::*member, const char* initial, Extra extra, const char* help) {
    bind<std::string>(add(name, Type::string, std::string(initial), help, std::move(extra)), member);
  }
  /// Declares a string key that also accepts a number and stores its text.
  void word(const char* name, std::string Struct::*member, const char* initial, Extra extra, const char* help) {
    Key& key = add(name, Type::any, std::string(initial), help, std::move(extra));
    key.get = [part = part_, member](const Config& c) { return Value(c.*part.*member); };
    key.set = [part = part_, member](Config& c, const Value& value) {
      const auto* text = std::get_if<std::string>(&value);
      c.*part.*member = text != nullptr ? *text : to_toml(value);
    };
  }
  void list(const char* name, StringList Struct::*member, Extra extra, const char* help) {
    bind<StringList>(add(name, Type::list, StringList{}, help, std::move(extra)), member);
  }
  /// `range` applies to each element.
  void integers(const char* name, IntegerList Struct::*member, IntegerList initial, Extra extra, const char* help) {
    bind<IntegerList>(add(name, Type::integers, std::move(initial), help, std::move(extra)), member);
  }
  /// Declares a list of tables [[section.name]] with these members.
  template <typename T>
  void tables(const char* name, std::vector<T> Struct::*list, const std::vector<Member<T>>& members, Extra extra,
              const char* help) {
    Key& key = add(name, Type::tables, TableList{}, help, std::move(extra));
    key.members.assign(members.begin(), members.end());
    key.get = [part = part_, list, members](const Config& c) {
      TableList tables;
      for (const T& each : c.*part.*list) {
        Table& table = tables.emplace_back();
        if constexpr (requires { each.line; }) table.line = each.line;
        for (const Member<T>& member : members)
          if (Value value = member.get(each); value != member.initial)
            table.members.push_back({member.name, std::move(value)});
      }
      return Value(std::move(tables));
    };
    key.set = [part = part_, list, members](Config& c, const Value& value) {
      (c.*part.*list).clear();
      for (const Table& table : std::get<TableList>(value)) {
        T& each = (c.*part.*list).emplace_back();
        if constexpr (requires { each.line; }) each.line = table.line;
        for (const TableMember& given : table.members)
          std::ranges::find(members, given.name, &Member<T>::name)->set(each, given.value);
      }
    };
  }
  /// Declares a key for one of these element types; the first is the default.
  void dtype(const char* name, DType Struct::*member, const std::vector<DType>& types, const char* help,
             Extra extra = {}) {
    Key& key = add(name, Type::choice, std::string(name_of(types.front())), help, std::move(extra));
    for (const DType type : types) key.names.emplace_back(name_of(type));
    key.get = [part = part_, member](const Config& c) { return Value(std::string(name_of(c.*part.*member))); };
    key.set = [part = part_, member, types](Config& c, const Value& value) {
      c.*part.*member =
          *std::ranges::find(types, std::get<std::string>(value), [](DType type) { return name_of(type); });
    };
  }
  /// Declares an enum key whose enumerators, counted from 0, are called `names`.
  template <typename Enum>
  void choice(const char* name, Enum Struct::*member, Enum initial, StringList names, std::string help,
              Extra extra = {}) {
    static_assert(std::is_enum_v<Enum>);
    Key& key = add(name, Type::choice, names[static_cast<size_t>(initial)], std::move(help), std::move(extra));
    key.names = names;
    key.get = [part = part_, member, names](const Config& c) {
      return Value(names.at(static_cast<size_t>(c.*part.*member)));
    };
    key.set = [part = part_, member, names](Config& c, const Value& value) {
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i] == std::get<std::string>(value)) c.*part.*member = static_cast<Enum>(i);
      }
    };
  }
  /// Declares a string key that has one of these values.
  void choice(const char* name, std::string Struct::*member, const char* initial, StringList names, std::string help) {
    Key& key = add(name, Type::choice, std::string(initial), std::move(help));
    bind<std::string>(key, member);
    key.names = std::move(names);
  }

 private:
  Key& add(const char* name, Type type, Value initial, std::string help, Extra extra = {}) {
    Key& key = keys_.emplace_back();
    key.section = section_;
    key.name = name;
    key.type = type;
    key.initial = std::move(initial);
    key.help = std::move(help);
    key.range = extra.range;
    key.unit = std::move(extra.unit);
    key.derived = std::move(extra.derived);
    key.example = std::move(extra.example);
    key.strategies = std::move(extra.strategies);
    key.needs = extra.needs;
    return key;
  }
  template <typename T>
  void bind(Key& key, T Struct::*member) {
    key.get = [part = part_, member](const Config& c) { return Value(c.*part.*member); };
    key.set = [part = part_, member](Config& c, const Value& value) { c.*part.*member = std::get<T>(value); };
  }
  void bind(Key& key, const Member<Struct>& bound) {
    key.get = [part = part_, get = bound.get](const Config& c) { return get(c.*part); };
    key.set = [part = part_, set = bound.set](Config& c, const Value& value) {
      if (value != Value()) set(c.*part, value);
    };
  }

  std::vector<Key>& keys_;
  std::string section_;
  Struct Config::*part_;
};

/// Declare the sections of this name (keys_model.cpp, keys_training.cpp, keys_parallel.cpp).
void declare_model(std::vector<Key>& keys);
void declare_train(std::vector<Key>& keys);
void declare_optim(std::vector<Key>& keys);
void declare_muon(std::vector<Key>& keys);
void declare_sgd(std::vector<Key>& keys);
void declare_parallel(std::vector<Key>& keys);
void declare_offload(std::vector<Key>& keys);

}  // namespace trainer::config
