// A topology as nested boxes. Sizes are computed from the inside out, with a font whose letters are equally
// wide.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

#include "tools/info/topology_model.h"

namespace peal::tools {
namespace {

constexpr double kLetter = 7.3;  // of 12 px, a little generous: the font may be another
constexpr double kLine = 16;
constexpr double kPad = 8;
constexpr double kSmallLetter = 6.2;  // of 10 px
constexpr double kCellHeight = 18;
constexpr double kCellGap = 4;
constexpr double kStripe = 6;
constexpr size_t kLeastLetters = 30;  // a box's text is not folded below that
constexpr size_t kCellsInRow = 8;
// Colours of rails, told apart also by those who do not see red or green well (Okabe and Ito).
constexpr std::array<const char*, 8> kRails{"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                            "#56b4e9", "#d55e00", "#f0e442", "#000000"};

struct Style {
  const char* name;
  const char* fill;
  double rowWidth;  // children go side by side up to this
};

Style styleOf(BoxKind kind) {
  switch (kind) {
    case BoxKind::Node:
      return {"node", "#ffffff", 1400};
    case BoxKind::Package:
      return {"package", "#f4f1e8", 690};
    case BoxKind::Numa:
      return {"numa", "#e7eff6", 670};
    case BoxKind::Cache:
      return {"cache", "#fafafa", 650};
    case BoxKind::Cores:
      return {"cores", "#ffffff", 0};
    case BoxKind::Bridge:
      return {"bridge", "#f7f7f7", 640};
    case BoxKind::Gpu:
      return {"gpu", "#e2f1df", 0};
    case BoxKind::Nic:
      return {"nic", "#fdf0d5", 0};
    case BoxKind::Device:
      return {"device", "#f0f0f0", 0};
    case BoxKind::Note:
      return {"note", "#fffbe0", 0};
    case BoxKind::Group:
      break;
  }
  return {"group", "#ffffff", 1360};
}

// Text for XML: without characters that it cannot hold.
std::string escaped(const std::string& text) {
  std::string xml;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      default:
        xml += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
    }
  }
  return xml;
}

size_t lettersOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

// Lines of at most that many letters; a longer word stays whole.
void fold(const std::string& text, size_t letters, std::vector<std::string>& lines) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && lettersOf(line) + 1 + lettersOf(word) > letters) {
      lines.push_back(line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  lines.push_back(line);
}

// A box with its place and its folded text. The first line is the title's, which is bold.
struct Laid {
  const Box* box = nullptr;
  double x = 0, y = 0, width = 0, height = 0;
  size_t titleLines = 1;
  std::vector<std::string> lines;
  double textHeight = 0;
  double cellWidth = 0;
  size_t cellsInRow = 1;
  std::vector<Laid> children;
};

Laid laid(const Box& box);

// Puts the children in rows below the text, whose height is not known yet; gives the space that they take.
std::pair<double, double> placeChildren(Laid& out, double rowWidth) {
  double x = 0, y = 0, rowHeight = 0, width = 0;
  for (Laid& child : out.children) {
    if (x > 0 && x + child.width > rowWidth) {
      x = 0;
      y += rowHeight + kPad;
      rowHeight = 0;
    }
    child.x = x;
    child.y = y;
    x += child.width + kPad;
    width = std::max(width, x - kPad);
    rowHeight = std::max(rowHeight, child.height);
  }
  return {width, out.children.empty() ? 0 : y + rowHeight};
}

std::pair<double, double> placeCells(Laid& out) {
  const std::vector<CoreCell>& cores = out.box->cores;
  if (cores.empty()) {
    return {0, 0};
  }
  size_t letters = 2;
  for (const CoreCell& core : cores) {
    letters = std::max(letters, core.cpus.size());
  }
  out.cellWidth = static_cast<double>(letters) * kSmallLetter + kPad;
  out.cellsInRow = std::min(cores.size(), kCellsInRow);
  const size_t rows = (cores.size() + out.cellsInRow - 1) / out.cellsInRow;
  return {static_cast<double>(out.cellsInRow) * (out.cellWidth + kCellGap) - kCellGap,
          static_cast<double>(rows) * (kCellHeight + kCellGap) - kCellGap};
}

Laid laid(const Box& box) {
  Laid out;
  out.box = &box;
  std::transform(box.children.begin(), box.children.end(), std::back_inserter(out.children), laid);
  const auto [childWidth, childHeight] = placeChildren(out, styleOf(box.kind).rowWidth);
  const auto [cellWidth, cellHeight] = placeCells(out);
  const double inner = std::max(childWidth, cellWidth);
  const size_t letters = std::max(kLeastLetters, static_cast<size_t>(inner / kLetter));
  fold(box.title, letters, out.lines);
  out.titleLines = out.lines.size();
  for (const std::string& detail : box.details) {
    fold(detail, letters, out.lines);
  }
  size_t longest = 0;
  for (const std::string& line : out.lines) {
    longest = std::max(longest, lettersOf(line));
  }
  const double left = box.rail >= 0 ? kStripe : 0;
  out.textHeight = static_cast<double>(out.lines.size()) * kLine;
  const double below = childHeight + cellHeight;
  out.width = std::max(inner, static_cast<double>(longest) * kLetter) + 2 * kPad + left;
  out.height = out.textHeight + (below > 0 ? kPad + below : 0) + 2 * kPad;
  for (Laid& child : out.children) {
    child.x += kPad + left;
    child.y += kPad + out.textHeight + kPad;
  }
  return out;
}

class Drawing {
 public:
  void add(const Laid& item, double x, double y) {
    const Box& box = *item.box;
    const Style style = styleOf(box.kind);
    out_ += fmt::format("<g class=\"{}\"><title>{}</title>\n", style.name, escaped(box.title));
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" fill=\"{}\" "
        "stroke=\"{}\"{}/>\n",
        x, y, item.width, item.height, box.grey ? "#ececec" : style.fill, box.grey ? "#999999" : "#555555",
        box.grey ? " stroke-dasharray=\"4 3\"" : "");
    double textX = x + kPad;
    if (box.rail >= 0) {
      out_ +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
                      y, kStripe, item.height, kRails[static_cast<size_t>(box.rail) % kRails.size()]);
      textX += kStripe;
    }
    addText(item, textX, y + kPad);
    addCells(item, x + kPad, y + kPad + item.textHeight + kPad);
    for (const Laid& child : item.children) {
      add(child, x + child.x, y + child.y);
    }
    out_ += "</g>\n";
  }
  void legend(double x, double y) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555555\">{}</text>\n", x, y, kLegend);
  }
  static constexpr const char* kLegend =
      "grey: not allowed, idle, or not used by peal; one colour at the edge: one rail";
  const std::string& text() const { return out_; }

 private:
  void addText(const Laid& item, double x, double y) {
    for (size_t i = 0; i < item.lines.size(); ++i) {
      y += kLine;
      out_ +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\"{}>{}</text>\n", x, y - 4,
                      item.box->grey ? "#666666" : "#111111",
                      i < item.titleLines && item.box->kind != BoxKind::Note ? " font-weight=\"bold\"" : "",
                      escaped(item.lines[i]));
    }
  }
  void addCells(const Laid& item, double x, double y) {
    for (size_t i = 0; i < item.box->cores.size(); ++i) {
      const CoreCell& core = item.box->cores[i];
      const size_t row = i / item.cellsInRow;
      const double left = x + static_cast<double>(i % item.cellsInRow) * (item.cellWidth + kCellGap);
      const double top = y + static_cast<double>(row) * (kCellHeight + kCellGap);
      out_ += fmt::format(
          "<g class=\"core\"><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "stroke=\"#888888\"/><text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" text-anchor=\"middle\" "
          "fill=\"{}\">{}</text></g>\n",
          left, top, item.cellWidth, kCellHeight, core.allowed ? "#cfe3f3" : "#ececec",
          left + item.cellWidth / 2, top + kCellHeight - 5, core.allowed ? "#111111" : "#777777",
          escaped(core.cpus));
    }
  }
  std::string out_;
};

}  // namespace

std::string topologySvg(const std::vector<Box>& nodes) {
  Drawing drawing;
  double width = static_cast<double>(std::string(Drawing::kLegend).size()) * kLetter;
  double y = kPad;
  for (const Box& node : nodes) {
    const Laid item = laid(node);
    drawing.add(item, kPad, y);
    width = std::max(width, item.width);
    y += item.height + kPad;
  }
  drawing.legend(kPad, y + kLine - 4);
  y += kLine + kPad;
  width += 2 * kPad;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      width, y, drawing.text());
}

}  // namespace peal::tools
