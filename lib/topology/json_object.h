// One object of a JSON file as its reader sees it: members by name, and the first fault with where it is.
//
// Used by described.cpp only. After a fault all reads do nothing, so that readers need no checks in between.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lib/topology/cpu_set.h"

namespace peal {

// The first fault of a file: a sentence, empty if there is none.
struct JsonFault {
  std::string sentence;
  void set(const std::string& where, const std::string& what);
};

class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string where, JsonFault& fault);
  JsonObject(const JsonObject&) = delete;
  JsonObject& operator=(const JsonObject&) = delete;
  // A member that nobody read is a fault, in which the names that are known stand.
  ~JsonObject();

  bool has(const char* key) const;
  const std::string& where() const { return where_; }
  std::string where(const char* key) const { return where_ + "." + key; }
  void refuse(const char* key, const std::string& what) { fault_.set(where(key), what); }

  // Each leaves its output as it is if the member is missing.
  void read(const char* key, std::string& out);
  void read(const char* key, bool& out);
  void read(const char* key, int& out, int least, int most);
  void read(const char* key, int64_t& out, int64_t least, int64_t most);
  void read(const char* key, uint64_t& out);
  void read(const char* key, double& out);  // from 0
  void read(const char* key, CpuSet& out);  // "0-3,8"
  void read(const char* key, std::vector<std::string>& out);
  void readObject(const char* key, const std::function<void(JsonObject&)>& read);
  // Calls read(object, index) for each element of an array of objects.
  void readArray(const char* key, size_t most, const std::function<void(JsonObject&, size_t)>& read);

 private:
  const nlohmann::json* member(const char* key);

  const nlohmann::json& value_;
  std::string where_;
  JsonFault& fault_;
  std::set<std::string> known_;
};

}  // namespace peal
