// Slurm's compressed lists.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace peal {

// The first host of a node list: "node[01-03,7],gpu1" gives "node01". Nothing if the list is empty or a
// bracket is not closed.
std::optional<std::string> firstHost(std::string_view nodeList);

// How many tasks run on a node: node 3 of "4(x3),2" has 2. Nothing if the text is not such a list or is too
// short.
std::optional<int> tasksOnNode(std::string_view tasksPerNode, int nodeIndex);

}  // namespace peal
