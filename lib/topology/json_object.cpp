#include "lib/topology/json_object.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

namespace peal {
namespace {

using nlohmann::json;

// The value as it stands in the file, shortened.
std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

void JsonFault::set(const std::string& where, const std::string& what) {
  if (sentence.empty()) {
    sentence = where + ": " + what;
  }
}

JsonObject::JsonObject(const json& value, std::string where, JsonFault& fault)
    : value_(value), where_(std::move(where)), fault_(fault) {
  if (!value.is_object()) {
    fault_.set(where_, fmt::format("{} is not an object in braces", shown(value)));
  }
}

JsonObject::~JsonObject() {
  if (!value_.is_object()) {
    return;
  }
  for (const auto& entry : value_.items()) {
    if (known_.count(entry.key()) == 0) {
      std::string names;
      for (const std::string& name : known_) {
        names += (names.empty() ? "" : ", ") + name;
      }
      fault_.set(where_, fmt::format("\"{}\" is not known there; correct or remove it. Known: {}",
                                     entry.key(), names));
    }
  }
}

bool JsonObject::has(const char* key) const { return value_.is_object() && value_.contains(key); }

const json* JsonObject::member(const char* key) {
  known_.insert(key);
  return fault_.sentence.empty() && has(key) ? &value_.at(key) : nullptr;
}

void JsonObject::read(const char* key, std::string& out) {
  if (const json* value = member(key)) {
    if (value->is_string()) {
      out = value->get<std::string>();
    } else {
      refuse(key, fmt::format("{} is not a text in quotes", shown(*value)));
    }
  }
}

void JsonObject::read(const char* key, bool& out) {
  if (const json* value = member(key)) {
    if (value->is_boolean()) {
      out = value->get<bool>();
    } else {
      refuse(key, fmt::format("{} is not true or false", shown(*value)));
    }
  }
}

void JsonObject::read(const char* key, int& out, int least, int most) {
  int64_t wide = out;
  read(key, wide, least, most);
  out = static_cast<int>(wide);
}

void JsonObject::read(const char* key, int64_t& out, int64_t least, int64_t most) {
  if (const json* value = member(key)) {
    // A number above the signed range would turn negative.
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() &&
                        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (fits && value->get<int64_t>() >= least && value->get<int64_t>() <= most) {
      out = value->get<int64_t>();
    } else {
      refuse(key, fmt::format("{} is not a whole number from {} to {}", shown(*value), least, most));
    }
  }
}

void JsonObject::read(const char* key, uint64_t& out) {
  int64_t number = 0;
  read(key, number, 0, std::numeric_limits<int64_t>::max());
  if (has(key)) {
    out = static_cast<uint64_t>(number);
  }
}

void JsonObject::read(const char* key, double& out) {
  if (const json* value = member(key)) {
    if (value->is_number() && std::isfinite(value->get<double>()) && value->get<double>() >= 0) {
      out = value->get<double>();
    } else {
      refuse(key, fmt::format("{} is not a number from 0", shown(*value)));
    }
  }
}

void JsonObject::read(const char* key, CpuSet& out) {
  if (const json* value = member(key)) {
    const std::optional<CpuSet> set =
        value->is_string() ? parseCpuSet(value->get<std::string>()) : std::nullopt;
    if (set) {
      out = *set;
    } else {
      refuse(key, fmt::format("{} is not a list of numbers such as \"0-3,8\"", shown(*value)));
    }
  }
}

void JsonObject::read(const char* key, std::vector<std::string>& out) {
  if (const json* value = member(key)) {
    bool texts = value->is_array();
    for (size_t i = 0; texts && i < value->size(); ++i) {
      texts = value->at(i).is_string();
    }
    if (texts) {
      out = value->get<std::vector<std::string>>();
    } else {
      refuse(key, fmt::format("{} is not an array of texts", shown(*value)));
    }
  }
}

void JsonObject::readObject(const char* key, const std::function<void(JsonObject&)>& read) {
  if (const json* value = member(key)) {
    JsonObject object(*value, where(key), fault_);
    read(object);
  }
}

void JsonObject::readArray(const char* key, size_t most,
                           const std::function<void(JsonObject&, size_t)>& read) {
  const json* const value = member(key);
  if (value == nullptr) {
    return;
  }
  if (!value->is_array() || value->size() > most) {
    refuse(key, fmt::format("{} is not an array of at most {} objects", shown(*value), most));
    return;
  }
  for (size_t i = 0; i < value->size() && fault_.sentence.empty(); ++i) {
    JsonObject object(value->at(i), fmt::format("{}[{}]", where(key), i), fault_);
    read(object, i);
  }
}

}  // namespace peal
