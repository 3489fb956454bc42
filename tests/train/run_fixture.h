// What the tests of whole runs share: a tiny model on the constitution, and what a run wrote.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/scratch_folder.h"
#include "tests/train/command.h"

#define EXPECT_IN(part, whole) EXPECT_NE((whole).find(part), std::string::npos) << (whole)

namespace peal::train {

using nlohmann::json;
using Arguments = std::vector<std::string>;

// A model that trains in a moment.
inline const Arguments kTiny = {"--text",      PEAL_TRAIN_FIXTURE,
                                "--layers",    "1",
                                "--width",     "12",
                                "--heads",     "3",
                                "--context",   "16",
                                "--batch",     "2",
                                "--log-every", "1",
                                "--sample",    "20"};

// Waits until the run has written an event to its metrics.
inline bool writes(const std::string& metricsPath, const std::string& event, const Command& command) {
  for (int i = 0; i < 12000; ++i) {
    std::ifstream lines(metricsPath);
    for (std::string line; std::getline(lines, line);) {
      if (line.find(event) != std::string::npos && command.pid() > 0) {
        return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class RunTest : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_ / name; }
  std::string writeFile(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

  static Arguments commandLine(const Arguments& base, const Arguments& more) {
    Arguments all = {PEAL_TRAIN_PROGRAM};
    all.insert(all.end(), base.begin(), base.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Runs to the end and expects success; returns the events of the metrics file.
  std::vector<json> train(const Arguments& more) {
    std::filesystem::remove(file("metrics"));
    Arguments arguments = commandLine(kTiny, more);
    arguments.insert(arguments.end(), {"--metrics", file("metrics")});
    const CommandResult result = Command(arguments).wait();
    EXPECT_EQ(result.exitCode, 0) << result.output;
    EXPECT_FALSE(result.overdue);
    EXPECT_FALSE(result.leftSomething);
    return metrics();
  }

  std::vector<json> metrics() const {
    std::vector<json> events;
    std::ifstream lines(file("metrics"));
    for (std::string line; std::getline(lines, line);) {
      events.push_back(json::parse(line));
    }
    return events;
  }

  // What must not depend on the stage: losses, norms, samples, weights.
  static json bits(const std::vector<json>& events) {
    json all = json::array();
    for (const json& event : events) {
      const std::string kind = event.at("event");
      if (kind == "step") {
        all.push_back(
            {event.at("loss"), event.at("gradientNorm"), event.at("clipFactor"), event.at("tokens")});
      } else if (kind == "heldOut") {
        all.push_back(event.at("loss"));
      } else if (kind == "sample") {
        all.push_back(event.at("text"));
      } else if (kind == "end") {
        all.push_back({event.at("heldOutLoss"), event.at("weights"), event.at("masters")});
      }
    }
    return all;
  }

 private:
  test::ScratchFolder folder_{"peal-train-test."};
};

}  // namespace peal::train
