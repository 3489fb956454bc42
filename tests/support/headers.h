// What nearly every test includes, read once for all test programs (peal_test in cmake/PealModule.cmake). A
// test includes what it needs all the same: it must compile without this.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>
