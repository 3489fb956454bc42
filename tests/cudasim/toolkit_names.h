// Of toolkit_names.cpp: what the two sets of headers say of each name.
#pragma once
#include <map>
#include <string>

namespace peal::cudasim {

std::map<std::string, std::string> simulatedNames();
std::map<std::string, std::string> toolkitNames();

}  // namespace peal::cudasim
