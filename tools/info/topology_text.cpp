// A topology as a tree of lines.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "tools/info/topology_model.h"

namespace peal::tools {
namespace {

constexpr size_t kLeastWidth = 30;  // of text, however deep the tree

// The width of a text in columns: its UTF-8 characters.
size_t widthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

class Tree {
 public:
  explicit Tree(size_t columns) : columns_(columns) {}

  // first: what stands before the first line of this box; rest: before all that belongs to it.
  void add(const Box& box, const std::string& first, const std::string& rest) {
    const bool open = !box.children.empty();
    std::string whole = box.title;
    for (const std::string& detail : box.details) {
      whole += (&detail == &box.details.front() ? ": " : ", ") + detail;
    }
    std::string line = first;
    bool fresh = true;
    const size_t limit = std::max(columns_, widthOf(rest) + kLeastWidth);
    std::istringstream words(whole);
    for (std::string word; words >> word;) {
      if (!fresh && widthOf(line) + 1 + widthOf(word) > limit) {
        text_ += line + '\n';
        line = rest + (open ? "│   " : "    ");
        fresh = true;
      }
      line += (fresh ? "" : " ") + word;
      fresh = false;
    }
    text_ += line + '\n';
    for (size_t i = 0; i < box.children.size(); ++i) {
      const bool last = i + 1 == box.children.size();
      add(box.children[i], rest + (last ? "└─ " : "├─ "), rest + (last ? "   " : "│  "));
    }
  }
  const std::string& text() const { return text_; }

 private:
  size_t columns_;
  std::string text_;
};

}  // namespace

std::string topologyText(const std::vector<Box>& nodes, size_t columns) {
  Tree tree(columns);
  for (const Box& node : nodes) {
    tree.add(node, "", "");
  }
  return tree.text();
}

}  // namespace peal::tools
