// Topologies as JSON: what was written is read back, and faults name the place, the value and the remedy.
#include "lib/topology/described.h"

#include <gtest/gtest.h>

#include <fstream>

#include "lib/topology/rails.h"
#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

Topology everything() {
  Topology topology;
  topology.insideNode = {450, 3.5};
  topology.betweenNodes = {50, 0};
  MachineNode& node = topology.nodes.emplace_back();
  node.name = "a \"node\"";
  node.count = 16;
  node.ranks = 2;
  node.allowedCpus = *parseCpuSet("0-1");
  node.packages = {{0, "Made Up 3000", *parseCpuSet("0-3")}};
  node.numaNodes = {{0, *parseCpuSet("0-3"), uint64_t{1} << 40, true}, {4, {}, 7, false}};
  node.caches = {{3, 1 << 20, *parseCpuSet("0-3")}};
  node.cores = {{*parseCpuSet("0-1")}, {*parseCpuSet("2-3")}};
  node.pciDevices = {{{"0000:02:00.0", {"pci0000:00", "0000:00:01.0"}, 0}, "storage"}};
  node.gpus = {{0, "H200", uint64_t{141} << 30, {"0000:03:00.0", {"pci0000:00"}, 0}, {1}},
               {1, "", 0, {}, {0}}};
  Nic rail;
  rail.interface = "ens1";
  rail.rdma = "mlx5_0";
  rail.port = 2;
  rail.kind = NicKind::InfiniBand;
  rail.speedMbps = 400000;
  rail.driver = "mlx5_core";
  rail.place = {"0000:04:00.0", {"pci0000:00"}, 0};
  rail.addresses = {"10.0.0.1/24", "fd00::1/64"};
  rail.gpus = {0, 1};
  Nic idle;
  idle.interface = "lo";
  idle.kind = NicKind::Loopback;
  idle.idle = "reaches this machine only";
  node.nics = {rail, idle};
  node.notes = {"something"};
  topology.nodes.emplace_back().name = "plain";
  return topology;
}

std::string faultOf(const std::string& text) {
  const Result<Topology> topology = parseTopology(text, "t.json");
  return topology ? "it was accepted" : topology.error().message;
}

// A file whose only node has these members.
std::string withNode(const std::string& members) {
  return R"({"format": "peal-topology-1", "nodes": [{)" + members + "}]}";
}

TEST(Described, WhatWasWrittenIsRead) {
  const Topology topology = everything();
  const Result<Topology> read = parseTopology(topologyJson(topology), "text");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, topology);
  EXPECT_EQ(topologyJson(*read), topologyJson(topology));
}

TEST(Described, LittleIsEnough) {
  const Result<Topology> read = parseTopology(withNode(R"("count": 4, "gpus": [{}, {}],
    "cores": [{"cpus": "0"}, {"cpus": "1"}], "nics": [{"rdma": "mlx5_0", "speedMbps": 200000}])"),
                                              "text");
  ASSERT_TRUE(read) << read.error().message;
  const MachineNode& node = read->nodes.at(0);
  EXPECT_EQ(node.name, "node0");
  EXPECT_EQ(node.gpus.at(1).device, 1);
  EXPECT_EQ(node.allowedCpus.text(), "0-1") << "all that are described";
  EXPECT_EQ(node.nics.at(0).port, 1);
  EXPECT_EQ(node.nics.at(0).state, "up");
}

TEST(Described, FaultsSayWhereWhatAndTheRemedy) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{", "t.json: not JSON: parse error at line 1, column 2"},
      {"[]", "t.json: [] is not an object in braces"},
      {"{}", "t.json.format: is \"\"; this peal reads \"peal-topology-1\""},
      {R"({"format": "peal-topology-2"})", "t.json.format: is \"peal-topology-2\""},
      {R"({"format": "peal-topology-1"})", "t.json.nodes: there is no node"},
      {R"({"format": "peal-topology-1", "nodes": 3})", "t.json.nodes: 3 is not an array of at most"},
      {R"({"format": "peal-topology-1", "insideNode": 7, "nodes": [{}]})",
       "t.json.insideNode: 7 is not an object"},
      {R"({"format": "peal-topology-1", "insideNode": {"latencyUs": -1}, "nodes": [{}]})",
       "t.json.insideNode.latencyUs: -1 is not a number from 0"},
      {withNode(R"("gpu": [])"), "t.json.nodes[0]: \"gpu\" is not known there"},
      {withNode(R"("gpu": [])"), "cores, count, gpus"},
      {withNode(R"("count": 0)"), "t.json.nodes[0].count: 0 is not a whole number from 1 to 65536"},
      {withNode(R"("count": 1.5)"), "nodes[0].count: 1.5 is not a whole number"},
      {withNode(R"("count": 18446744073709551615)"), "nodes[0].count: 18446744073709551615 is not"},
      {withNode(R"("name": 5)"), "nodes[0].name: 5 is not a text"},
      {withNode(R"("allowedCpus": "3-1")"), "nodes[0].allowedCpus: \"3-1\" is not a list of numbers such as"},
      {withNode(R"("numaNodes": [{"allowed": "yes"}])"),
       "numaNodes[0].allowed: \"yes\" is not true or false"},
      {withNode(R"("notes": "x")"), "nodes[0].notes: \"x\" is not an array of texts"},
      {withNode(R"("gpus": [{"pci": "12"}])"), "gpus[0].pci: \"12\" is no PCI address such as"},
      {withNode(R"("gpus": [{"bridges": "0000:00:01.0"}])"), "gpus[0].bridges: \"0000:00:01.0\" in"},
      {withNode(R"("gpus": [{}, {"device": 0}])"), "nodes[0].gpus: device 0 stands there twice"},
      {withNode(R"("gpus": [{"peers": "1"}])"),
       "nodes[0].gpus: device 0 names GPU 1, which \"gpus\" does not have"},
      {withNode(R"("nics": [{}])"), "nics[0].interface: a NIC needs a name"},
      {withNode(R"("nics": [{"interface": "a", "kind": "token ring"}])"),
       "\"token ring\" is none of ethernet"},
      {withNode(R"("nics": [{"interface": "a"}, {"interface": "a"}])"),
       "nodes[0].nics: a stands there twice"},
      {withNode(R"("nics": [{"interface": "a", "gpus": "3"}])"), "nodes[0].nics: a names GPU 3"},
      {withNode(R"("gpus": [{}], "nics": [{"interface": "a", "gpus": "0", "idle": "x"}])"),
       "nics[0].idle: a NIC that serves GPUs is not idle"},
      {withNode(R"("numaNodes": [{"id": 2}], "gpus": [{"numaNode": 1}])"),
       "nodes[0].gpus: device 0 is on NUMA node 1, which \"numaNodes\" does not have"}};
  for (const auto& [text, words] : cases) {
    EXPECT_NE(faultOf(text).find(words), std::string::npos)
        << text << "\nwanted: " << words << "\ngot:    " << faultOf(text);
    EXPECT_NE(faultOf(text).find("docs/TOPOLOGY.md"), std::string::npos) << faultOf(text);
  }
}

TEST(Described, HostileTextsAreRefusedNotObeyed) {
  const std::string deep(100000, '[');
  EXPECT_NE(faultOf(deep).find("not JSON"), std::string::npos);
  EXPECT_NE(faultOf(std::string(R"({"format": "peal-topology-1", "nodes": )") + deep).find("not JSON"),
            std::string::npos);
  std::string gpus;
  for (int i = 0; i < 257; ++i) {
    gpus += i == 0 ? "{}" : ",{}";
  }
  EXPECT_NE(faultOf(withNode("\"gpus\": [" + gpus + "]")).find("at most 256"), std::string::npos);
}

TEST(Described, BytesThatAreNoUtf8BecomeJson) {
  Topology topology = everything();
  topology.nodes[0].packages[0].model = "Intel\xae";
  const Result<Topology> read = parseTopology(topologyJson(topology), "text");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->nodes[0].packages[0].model, "Intel\xef\xbf\xbd");
}

TEST(Described, FilesThatCannotBeRead) {
  const SystemFolder folder;
  const std::string path = folder.roots().sys;
  for (const std::string& wrong : {path + "/no-such-file", path}) {
    const Result<Topology> read = readTopologyFile(wrong);
    ASSERT_FALSE(read);
    EXPECT_NE(read.error().message.find(wrong), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find("PEAL_TOPOLOGY_FILE"), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace peal::test
