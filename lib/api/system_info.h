// What this library knows of itself and its surroundings, as JSON. Behind pealSystemInfo.
#pragma once
#include <string>

namespace peal {

// An object with: version, versionCode, cpu {isa, allowedCpus}, devices, transports and discovery (each a
// list of {name, found, why}), configuration {error, knobs}. A knob: name, type, value, default, origin
// ("default" or "environment"), range, help, secret. A secret's value is null; so is every value if the
// configuration is in error (`error` then has the sentence, else it is null).
std::string systemInfoJson();

}  // namespace peal
