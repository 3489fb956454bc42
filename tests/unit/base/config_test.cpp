// The configuration table: what it accepts, what it refuses and in which words, and that it describes itself.
#include "lib/base/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace {

using peal::Configuration;
using peal::Knob;
using peal::KnobInfo;
using peal::KnobType;
using peal::Result;

// Configuration::read takes a plain function: it looks here.
std::map<std::string, std::string, std::less<>>& environment() {
  static std::map<std::string, std::string, std::less<>> variables;
  return variables;
}

Result<Configuration> readWith(std::map<std::string, std::string, std::less<>> variables) {
  environment() = std::move(variables);
  return Configuration::read([](const char* name) -> const char* {
    const auto found = environment().find(name);
    return found != environment().end() ? found->second.c_str() : nullptr;
  });
}

void expectRefused(const std::string& name, const std::string& value, const std::string& words) {
  const Result<Configuration> read = readWith({{name, value}});
  ASSERT_FALSE(read) << name << "=" << value << " was accepted";
  EXPECT_EQ(read.error().code, pealInvalidArgument);
  EXPECT_NE(read.error().message.find(name), std::string::npos) << read.error().message;
  EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
}

TEST(ConfigTable, HasOneRowPerKnobInOrder) {
  ASSERT_EQ(peal::knobTable().size(), static_cast<size_t>(Knob::Count));
  for (size_t i = 0; i < peal::knobTable().size(); ++i) {
    EXPECT_EQ(peal::knobTable()[i].knob, static_cast<Knob>(i)) << peal::knobTable()[i].name;
  }
}

TEST(ConfigTable, EveryKnobDescribesItself) {
  std::set<std::string> names;
  for (const KnobInfo& info : peal::knobTable()) {
    const std::string name = info.name;
    const std::string help = info.help;
    EXPECT_EQ(name.rfind("PEAL_", 0), 0u) << name;
    EXPECT_TRUE(names.insert(name).second) << name << " stands twice";
    EXPECT_GE(help.size(), 20u) << name;
    EXPECT_EQ(help.empty() ? ' ' : help.back(), '.') << name << ": the help is a sentence";
    if (info.type == KnobType::Integer) {
      EXPECT_LT(info.least, info.most) << name;
    }
    const std::string choices = info.choices;
    const bool namesNumbers = choices.find('=') != std::string::npos;
    EXPECT_EQ(info.type == KnobType::Choice, choices.find('|') != std::string::npos && !namesNumbers) << name;
    EXPECT_TRUE(info.type == KnobType::Integer || !namesNumbers) << name;
    // The unit in the name is the unit in the help.
    if (name.ends_with("_MS")) {
      EXPECT_NE(help.find("milliseconds"), std::string::npos) << name;
    }
    if (name.ends_with("_US")) {
      EXPECT_NE(help.find("microseconds"), std::string::npos) << name;
    }
    if (name.ends_with("_BYTES")) {
      EXPECT_NE(help.find("bytes"), std::string::npos) << name;
    }
  }
}

TEST(ConfigTable, SecretsAreMarked) {
  for (const KnobInfo& info : peal::knobTable()) {
    EXPECT_EQ(info.secret, std::string_view(info.name).find("SECRET") != std::string_view::npos) << info.name;
  }
}

TEST(Configuration, DefaultsAreLegalAndKnownAsDefaults) {
  const Result<Configuration> read = readWith({});
  ASSERT_TRUE(read) << read.error().message;
  for (const KnobInfo& info : peal::knobTable()) {
    EXPECT_TRUE(read->isDefault(info.knob)) << info.name;
    EXPECT_EQ(read->text(info.knob), info.defaultText) << info.name;
    if (info.type == KnobType::Integer) {
      EXPECT_EQ(std::to_string(read->integer(info.knob)), info.defaultText) << info.name;
    }
  }
}

TEST(Configuration, SomeNumbersHaveNames) {
  for (const auto& [text, device] :
       {std::pair("host", -1), {"current", -2}, {"auto", -3}, {"-2", -2}, {"7", 7}}) {
    const Result<Configuration> read = readWith({{"PEAL_DEVICE", text}});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->integer(Knob::Device), device) << text;
  }
  for (const char* text : {"hos", "host=", "host=-1", "-4", "", "|"}) {
    expectRefused("PEAL_DEVICE", text, "none of host=-1|current=-2|auto=-3");
  }
}

TEST(Configuration, TakesGivenValues) {
  const Result<Configuration> read =
      readWith({{"PEAL_TIMEOUT_MS", "1500"}, {"PEAL_ALGO", "ring"}, {"PEAL_INTERFACE", "^lo,=eth0"}});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->integer(Knob::TimeoutMs), 1500);
  EXPECT_FALSE(read->isDefault(Knob::TimeoutMs));
  EXPECT_EQ(read->text(Knob::Algorithm), "ring");
  EXPECT_EQ(read->text(Knob::Interface), "^lo,=eth0");
  EXPECT_TRUE(read->isDefault(Knob::Slots));
}

TEST(Configuration, AValueEqualToTheDefaultIsStillGiven) {
  const Result<Configuration> read = readWith({{"PEAL_SLOTS", "4"}});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_FALSE(read->isDefault(Knob::Slots));
}

TEST(Configuration, EveryIntegerIsTakenToItsEndsAndNoFurther) {
  for (const KnobInfo& info : peal::knobTable()) {
    if (info.type != KnobType::Integer) {
      continue;
    }
    for (const int64_t value : {info.least, info.most}) {
      const Result<Configuration> read = readWith({{info.name, std::to_string(value)}});
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->integer(info.knob), value) << info.name;
    }
    expectRefused(info.name, std::to_string(info.least - 1), std::to_string(info.least));
    expectRefused(info.name, std::to_string(info.most + 1), std::to_string(info.most));
  }
}

TEST(Configuration, RefusesWhatIsNotAWholeNumber) {
  for (const char* value : {"", " ", "x", "1x", "x1", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "--1",
                            "99999999999999999999999", "1\n"}) {
    expectRefused("PEAL_TIMEOUT_MS", value, "is not a whole number from 1 to");
  }
}

TEST(Configuration, EveryChoiceIsTakenAndNothingElse) {
  for (const KnobInfo& info : peal::knobTable()) {
    if (info.type != KnobType::Choice) {
      continue;
    }
    std::string_view left = info.choices;
    while (!left.empty()) {
      const size_t bar = std::min(left.find('|'), left.size());
      const std::string choice(left.substr(0, bar));
      const Result<Configuration> read = readWith({{info.name, choice}});
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->text(info.knob), choice) << info.name;
      expectRefused(info.name, choice + "x", info.choices);
      expectRefused(info.name, choice.substr(1), info.choices);
      left.remove_prefix(std::min(bar + 1, left.size()));
    }
    expectRefused(info.name, "", info.choices);
    expectRefused(info.name, info.choices, info.choices);
  }
}

TEST(Configuration, SlotBytesIsAMultipleOfACacheLine) {
  expectRefused("PEAL_SLOT_BYTES", "100", "multiple of 64");
  EXPECT_TRUE(readWith({{"PEAL_SLOT_BYTES", "192"}}));
}

std::vector<std::string> unknownIn(std::vector<const char*> entries) {
  entries.push_back(nullptr);
  return peal::unknownVariables(entries.data());
}

TEST(UnknownVariables, AreToldWithTheNameThatWasMeant) {
  const std::map<std::string, std::string> meant{
      {"PEAL_SLOTBYTES", "PEAL_SLOT_BYTES"}, {"PEAL_SLOT_BYTE", "PEAL_SLOT_BYTES"},
      {"PEAL_SLOT", "PEAL_SLOTS"},           {"PEAL_TIMEOUT", "PEAL_TIMEOUT_MS"},
      {"PEAL_ALGORITHM", "PEAL_ALGO"},       {"PEAL_TIMEUOT_MS", "PEAL_TIMEOUT_MS"},
      {"PEAL_Transport", "PEAL_TRANSPORT"},  {"PEAL_RANKS", "PEAL_RANK"},
      {"PEAL_PROTO", "PEAL_PROTOCOL"},       {"PEAL_TUNERFILE", "PEAL_TUNER_FILE"}};
  for (const auto& [wrong, right] : meant) {
    EXPECT_EQ(
        unknownIn({(wrong + "=7").c_str()}),
        std::vector<std::string>{"the environment sets " + wrong +
                                 ", which peal does not know: it has no effect. Was " + right + " meant?"});
  }
  const std::vector<std::string> far = unknownIn({"PEAL_COLOUR=correct horse"});
  ASSERT_EQ(far.size(), 1u);
  EXPECT_NE(far[0].find("PEAL_COLOUR"), std::string::npos) << far[0];
  EXPECT_NE(far[0].find("peal-info --config"), std::string::npos) << far[0];
  EXPECT_EQ(far[0].find("horse"), std::string::npos) << "values may be secrets: " << far[0];
}

TEST(UnknownVariables, AreNoneOfOursAndNoneOfOthers) {
  std::vector<std::string> entries{"PEALS=1", "XPEAL_SLOTBYTES=1", "PATH=PEAL_SLOTBYTES=1",
                                   "PEAL_TESTS_MIN_BW=2", "="};
  for (const KnobInfo& info : peal::knobTable()) {
    entries.push_back(std::string(info.name) + "=");
  }
  std::vector<const char*> pointers;
  for (const std::string& entry : entries) {
    pointers.push_back(entry.c_str());
  }
  EXPECT_EQ(unknownIn(pointers), std::vector<std::string>{});
  EXPECT_EQ(peal::unknownVariables(nullptr), std::vector<std::string>{});
}

TEST(UnknownVariables, OfThisProcessAreRead) {
  ASSERT_EQ(setenv("PEAL_SLOTBYTES", "64", 1), 0);
  const std::vector<std::string> told = peal::unknownVariables();
  ASSERT_EQ(unsetenv("PEAL_SLOTBYTES"), 0);
  EXPECT_EQ(
      std::count_if(told.begin(), told.end(),
                    [](const std::string& one) { return one.find("PEAL_SLOTBYTES,") != std::string::npos; }),
      1);
}

TEST(Configuration, ForeignVariablesAreReadAsTheyAre) {
  ASSERT_EQ(setenv("PEAL_TEST_FOREIGN", "a b", 1), 0);
  EXPECT_EQ(peal::foreignVariable("PEAL_TEST_FOREIGN"), "a b");
  ASSERT_EQ(setenv("PEAL_TEST_FOREIGN", "", 1), 0);
  EXPECT_EQ(peal::foreignVariable("PEAL_TEST_FOREIGN"), "");
  ASSERT_EQ(unsetenv("PEAL_TEST_FOREIGN"), 0);
  EXPECT_FALSE(peal::foreignVariable("PEAL_TEST_FOREIGN").has_value());
}

}  // namespace
