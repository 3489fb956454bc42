#!/usr/bin/env python3
"""Writes copies of the algorithms with one line changed each, for mutants_test.

Called by the build with the headers' folder and the file to write. Takes the text of the real headers, so
the copies cannot rot: a row whose line no longer stands exactly once in its function ends the build.

    mutate.py ALGORITHMS_FOLDER OUTPUT.cpp

A row is (function or struct whose text is changed, the line without indentation, the defect put in its
place, the algorithm that is then checked if it is not that function).
"""
import re
import sys
from pathlib import Path

RING = [
    ("ringNext", "return (port.rank() + 1) % port.size();", "return (port.rank() + 2) % port.size();",
     "ringAllReduce"),
    ("ringPrevious", "return (port.rank() + port.size() - 1) % port.size();",
     "return (port.rank() + port.size() - 2) % port.size();", "ringAllGather"),

    ("ringReduceScatter", "port.copyFinish(round.chunk(0));", "port.copy(round.chunk(0));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.send(next, round.chunk(own));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.send(previous, round.chunk(own - 1));"),
    ("ringReduceScatter", "port.send(next, round.chunk(own - 1));", "port.copySend(next, round.chunk(own - 1));"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 1; k < n; ++k) {"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 3; k < n; ++k) {"),
    ("ringReduceScatter", "for (int k = 2; k < n; ++k) {", "for (int k = 2; k < n - 1; ++k) {"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(previous, next, round.chunk(own + k));"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvCopySend(previous, next, round.chunk(own - k));"),
    ("ringReduceScatter", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(next, previous, round.chunk(own - k));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recv(previous, round.chunk(own));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recvReduceCopy(previous, round.chunk(own - 1));"),
    ("ringReduceScatter", "port.recvReduceCopy(previous, round.chunk(own));",
     "port.recvReduceCopySend(previous, next, round.chunk(own));"),

    ("ringAllGather", "port.copy(round.chunk(0));", "port.copyFinish(round.chunk(0));"),
    ("ringAllGather", "port.copySend(next, round.chunk(own));", "port.send(next, round.chunk(own));"),
    ("ringAllGather", "for (int k = 1; k < n - 1; ++k) {", "for (int k = 1; k < n; ++k) {"),
    ("ringAllGather", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvCopySend(previous, next, round.chunk(own - k - 1));"),
    ("ringAllGather", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvReduceSend(previous, next, round.chunk(own - k));"),
    ("ringAllGather", "port.recv(previous, round.chunk(own + 1));", "port.recv(previous, round.chunk(own));"),
    ("ringAllGather", "port.recv(previous, round.chunk(own + 1));",
     "port.recvReduceCopy(previous, round.chunk(own + 1));"),

    ("ringAllReduce", "port.send(next, round.chunk(own - 1));", "port.sendOut(next, round.chunk(own - 1));"),
    ("ringAllReduce", "port.send(next, round.chunk(own - 1));", "port.send(next, round.chunk(own + 1));"),
    ("ringAllReduce", "for (int k = 2; k < n; ++k) {", "for (int k = 2; k <= n; ++k) {"),
    ("ringAllReduce", "port.recvReduceSend(previous, next, round.chunk(own - k));",
     "port.recvReduceCopySend(previous, next, round.chunk(own - k));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvReduceSend(previous, next, round.chunk(own));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvReduceCopy(previous, round.chunk(own));"),
    ("ringAllReduce", "port.recvReduceCopySend(previous, next, round.chunk(own));",
     "port.recvCopySend(previous, next, round.chunk(own));"),
    ("ringAllReduce", "for (int k = 1; k < n - 1; ++k) {", "for (int k = 2; k < n - 1; ++k) {"),
    ("ringAllReduce", "port.recvCopySend(previous, next, round.chunk(own - k));",
     "port.recvReduceCopySend(previous, next, round.chunk(own - k));"),
    ("ringAllReduce", "port.recv(previous, round.chunk(own + 1));", "port.recv(previous, round.chunk(own + 2));"),

    ("ringBroadcast", "} else if (port.rank() == root) {", "} else if (port.rank() == 0) {"),
    ("ringBroadcast", "} else if (next == root) {", "} else if (previous == root) {"),
    ("ringBroadcast", "port.copySend(next, c);", "port.send(next, c);"),
    ("ringBroadcast", "port.recv(previous, c);", "port.recvCopySend(previous, next, c);"),
    ("ringBroadcast", "port.recvCopySend(previous, next, c);", "port.recv(previous, c);"),

    ("ringReduce", "} else if (port.rank() == root) {", "} else if (port.rank() == port.size() - 1) {"),
    ("ringReduce", "} else if (previous == root) {", "} else if (next == root) {"),
    ("ringReduce", "port.send(next, c);", "port.copySend(next, c);"),
    ("ringReduce", "port.recvReduceSend(previous, next, c);", "port.recvReduceCopySend(previous, next, c);"),
    ("ringReduce", "port.recvReduceCopy(previous, c);", "port.recv(previous, c);"),
]

DIRECT = [
    ("staggeredPeer", "return (port.rank() + k) % port.size();", "return (port.rank() + k + 1) % port.size();",
     "twoShotAllReduce"),
    ("staggeredPeer", "return (port.rank() + k) % port.size();", "return port.rank() + k;", "directAllGather"),

    ("oneShotAllReduce", "port.copyFinish(c);", "port.copy(c);"),
    ("oneShotAllReduce", "port.sendAll(c);", "port.sendOutAll(c);"),
    ("oneShotAllReduce", "port.sendAll(c);", "port.recvReduceAll(c);"),
    ("oneShotAllReduce", "port.recvReduceAll(c);", "port.copyFinish(c);"),

    ("directReduceScatter", "for (int k = 1; k < n; ++k) {", "for (int k = 2; k < n; ++k) {"),
    ("directReduceScatter", "for (int k = 1; k < n; ++k) {", "for (int k = 1; k < n - 1; ++k) {"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.send(peer, round.chunk(own));"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.copySend(peer, round.chunk(peer));"),
    ("directReduceScatter", "port.send(peer, round.chunk(peer));", "port.sendAll(round.chunk(peer));"),
    ("directReduceScatter", "port.recvReduceAll(round.chunk(own));", "port.recvReduceAll(round.chunk(own + 1));"),

    ("twoShotAllReduce", "directReduceScatter(port, round);", "port.copyFinish(round.chunk(own));"),
    ("twoShotAllReduce", "port.sendOutAll(round.chunk(own));", "port.sendAll(round.chunk(own));"),
    ("twoShotAllReduce", "for (int k = 1; k < n; ++k) {", "for (int k = 1; k < n - 1; ++k) {"),
    ("twoShotAllReduce", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(own));"),
    ("twoShotAllReduce", "port.recv(peer, round.chunk(peer));", "port.recvReduceCopy(peer, round.chunk(peer));"),

    ("stagedTwoShot", "port.copyFinish(round.chunk(0));", "port.copy(round.chunk(0));"),
    ("stagedTwoShot", "port.recvReduceAll(round.chunk(own));", "port.recvReduceAll(round.chunk(own + 1));"),
    ("stagedTwoShot", "for (int k = 1; k < n; ++k) {", "for (int k = 1; k < n - 1; ++k) {"),
    ("stagedTwoShot", "port.send(peer, round.chunk(peer));", "port.send(peer, round.chunk(own));"),
    ("stagedTwoShot", "port.sendOut(peer, round.chunk(own));", "port.send(peer, round.chunk(own));"),
    ("stagedTwoShot", "port.sendOut(peer, round.chunk(own));", "port.sendOut(peer, round.chunk(peer));"),
    ("stagedTwoShot", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(own));"),

    ("directAllGather", "port.sendAll(round.chunk(own));", "port.sendOutAll(round.chunk(own));"),
    ("directAllGather", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(peer + 1));"),
    ("directAllGather", "port.copy(round.chunk(own));", "port.copyFinish(round.chunk(own));"),
    ("directAllGather", "port.copy(round.chunk(own));", "port.copy(round.chunk(own + 1));"),

    ("directBroadcast", "if (port.rank() != root) {", "if (port.rank() != 0) {"),
    ("directBroadcast", "port.recv(root, c);", "port.recvReduceCopy(root, c);"),
    ("directBroadcast", "port.sendAll(c);", "port.send(staggeredPeer(port, 1), c);"),
    ("directBroadcast", "port.copy(c);", "port.copyFinish(c);"),

    ("directReduce", "} else if (port.rank() == root) {", "} else if (port.rank() == 0) {"),
    ("directReduce", "port.recvReduceAll(c);", "port.recvReduceCopy(staggeredPeer(port, 1), c);"),
    ("directReduce", "port.send(root, c);", "port.copySend(root, c);"),
    ("directReduce", "port.send(root, c);", "port.sendAll(c);"),
]

CHUNK = [
    ("Blocks", "const size_t longer = total % n;", "const size_t longer = 0;", "ringAllReduce"),
    ("Blocks", "return total / n * k + (k < longer ? k : longer);", "return total / n * k + longer;",
     "ringReduceScatter"),
    ("Blocks", "return {start(k), start(k + 1) - start(k)};", "return {start(k), start(k + 1) - start(0)};",
     "directAllGather"),
    ("Round", "const size_t skip = begin < block.count ? begin : block.count;", "const size_t skip = begin;",
     "twoShotAllReduce"),
    ("Round", "const size_t left = block.count - skip;", "const size_t left = block.count;", "ringAllGather"),
    ("Round", "return {block.offset + skip, left < chunkCount ? left : chunkCount};",
     "return {block.offset, left < chunkCount ? left : chunkCount};", "ringBroadcast"),
    ("Round", "return {block.offset + skip, left < chunkCount ? left : chunkCount};",
     "return {block.offset + skip, chunkCount};", "oneShotAllReduce"),
]

GROUPING = [
    ("Grouping", "constexpr PEAL_HD int local(int rank) const { return localOf == nullptr ? 0 : localOf[rank]; }",
     "constexpr PEAL_HD int local(int rank) const { return localOf == nullptr ? 0 : rank; }",
     "hierarchicalReduceScatter"),
    ("Grouping", "return members == nullptr ? node : members[starts[node] + local];",
     "return members == nullptr ? node : starts[node] + local;", "hierarchicalAllGather"),
    ("Grouping", "return starts == nullptr ? 1 : starts[node + 1] - starts[node];",
     "return starts == nullptr ? 1 : starts[1];", "doublingAllReduce"),
]

HIERARCHICAL = [
    ("agentOf", "return nodes.rank(node, nodes.local(owner) % nodes.nodeSize(node));",
     "return nodes.rank(node, (nodes.local(owner) + 1) % nodes.nodeSize(node));", "hierarchicalAllReduce"),
    ("agentOf", "return nodes.rank(node, nodes.local(owner) % nodes.nodeSize(node));",
     "return nodes.rank(node, 0);", "hierarchicalAllGather"),
    ("localPeer", "return nodes.rank(node, (nodes.local(port.rank()) + k) % nodes.nodeSize(node));",
     "return nodes.rank(node, (nodes.local(port.rank()) + 1) % nodes.nodeSize(node));", "hierarchicalAllReduce"),
    ("holdNode", "port.holdIn(c);", "port.holdOut(c);", "hierarchicalReduceScatter"),
    ("holdNode", "for (int local = 0; local < nodes.nodeSize(node); ++local) {",
     "for (int local = 1; local < nodes.nodeSize(node); ++local) {", "hierarchicalReduce"),

    ("sumForOthers", "for (int k = 1; k < nodes.nodes; ++k) {", "for (int k = 2; k < nodes.nodes; ++k) {",
     "hierarchicalReduceScatter"),
    ("sumForOthers", "const int other = (node + k) % nodes.nodes;",
     "const int other = (node + k + 1) % nodes.nodes;", "hierarchicalReduceScatter"),
    ("sumForOthers", "for (int first = 0; first < nodes.nodeSize(other); first += size) {",
     "for (int first = 0; first < size; first += size) {", "hierarchicalReduceScatter"),
    ("sumForOthers", "if (nodes.local(agent) < turn) {", "if (nodes.local(agent) <= turn) {",
     "hierarchicalReduceScatter"),
    ("sumForOthers", "if (local < turn) {", "if (local == 0) {", "hierarchicalAllReduce"),
    ("sumForOthers", "port.send(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));",
     "port.send(agent, round.chunk(nodes.rank(other, first + local)));", "hierarchicalReduceScatter"),
    ("sumForOthers", "port.send(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));",
     "port.sendOut(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));", "hierarchicalAllReduce"),
    ("sumForOthers", "const int owner = nodes.rank(other, first + local);",
     "const int owner = nodes.rank(other, local);", "hierarchicalReduceScatter"),
    ("sumForOthers", "holdNode(port, nodes, round.chunk(owner));", "port.holdIn(round.chunk(owner));",
     "hierarchicalReduceScatter"),
    ("sumForOthers", "port.sumSend(owner, round.chunk(owner));",
     "port.sumSend(agentOf(nodes, node, owner), round.chunk(owner));", "hierarchicalReduceScatter"),

    ("sumOwn", "for (int i = 1; i < nodes.nodeSize(node); ++i) {", "for (int i = 2; i < nodes.nodeSize(node); ++i) {",
     "hierarchicalReduceScatter"),
    ("sumOwn", "port.send(peer, round.chunk(peer));", "port.send(peer, round.chunk(own));",
     "hierarchicalAllReduce"),
    ("sumOwn", "if (other == node) {", "if (other == 0) {", "hierarchicalReduceScatter"),
    ("sumOwn", "port.hold(agentOf(nodes, other, own), round.chunk(own));",
     "port.hold(nodes.rank(other, nodes.nodeSize(other) - 1), round.chunk(own));", "hierarchicalAllReduce"),
    ("sumOwn", "port.sumCopy(round.chunk(own));", "port.sumKeep(round.chunk(own));", "hierarchicalReduceScatter"),
    ("sumOwn", "port.sumCopy(round.chunk(own));", "port.sumKeep(round.chunk(own));", "hierarchicalAllReduce"),

    ("spreadInside", "const int other = (node - k + nodes.nodes) % nodes.nodes;",
     "const int other = (node - k + 1 + nodes.nodes) % nodes.nodes;", "hierarchicalAllGather"),
    ("spreadInside", "port.recv(peer, round.chunk(peer));", "port.recv(peer, round.chunk(own));",
     "hierarchicalAllGather"),
    ("spreadInside", "port.sendOut(localPeer(port, nodes, i), round.chunk(owner));",
     "port.send(localPeer(port, nodes, i), round.chunk(owner));", "hierarchicalAllReduce"),
    ("spreadInside", "port.sendOut(localPeer(port, nodes, i), round.chunk(owner));",
     "port.sendOut(localPeer(port, nodes, i), round.chunk(own));", "hierarchicalAllReduce"),
    ("spreadInside", "port.recv(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));",
     "port.recv(agent, round.chunk(nodes.rank(other, nodes.local(agent))));", "hierarchicalAllGather"),
    ("spreadInside", "if (nodes.local(agent) < turn) {", "if (nodes.local(agent) < turn - 1) {",
     "hierarchicalAllGather"),

    ("hierarchicalReduceScatter", "port.copyFinish(round.chunk(0));", "port.copy(round.chunk(0));"),
    ("hierarchicalReduceScatter", "sumForOthers(port, round, nodes);", "sumOwn(port, round, nodes);"),
    ("hierarchicalAllGather", "port.send(agentOf(nodes, (node + k) % nodes.nodes, own), round.chunk(own));",
     "port.send(agentOf(nodes, (node + 1) % nodes.nodes, own), round.chunk(own));"),
    ("hierarchicalAllGather", "port.send(localPeer(port, nodes, i), round.chunk(own));",
     "port.sendOut(localPeer(port, nodes, i), round.chunk(own));"),
    ("hierarchicalAllGather", "port.copy(round.chunk(own));", "port.copyFinish(round.chunk(own));"),
    ("hierarchicalAllReduce", "port.sendOut(agentOf(nodes, (node + k) % nodes.nodes, own), round.chunk(own));",
     "port.send(agentOf(nodes, (node + k) % nodes.nodes, own), round.chunk(own));"),
    ("hierarchicalAllReduce", "port.sendOut(localPeer(port, nodes, i), round.chunk(own));",
     "port.sendOut(localPeer(port, nodes, 1), round.chunk(own));"),
    ("hierarchicalAllReduce", "spreadInside(port, round, nodes);", "port.copy(round.chunk(own));"),

    ("headOf", "return node == nodes.node(root) ? root : agentOf(nodes, node, root);",
     "return nodes.rank(node, 0);", "hierarchicalReduce"),
    ("hierarchicalBroadcast", "if (next == head) {", "if (next == root) {"),
    ("hierarchicalBroadcast", "port.recvCopySend(previous, next, c);", "port.recv(previous, c);"),
    ("hierarchicalBroadcast", "if (own == root) {", "if (own == 0) {"),
    ("hierarchicalBroadcast", "if (nextNode != nodes.node(root)) {", "if (nextNode != 0) {"),
    ("hierarchicalBroadcast", "port.sendOut(headOf(nodes, nextNode, root), c);",
     "port.sendOut(agentOf(nodes, nextNode, own), c);"),
    ("hierarchicalBroadcast", "port.sendOut(next, c);", "port.send(next, c);"),
    ("hierarchicalReduce", "port.send(head, c);", "port.send(root, c);"),
    ("hierarchicalReduce", "holdNode(port, nodes, c);", "port.holdIn(c);"),
    ("hierarchicalReduce", "port.hold(headOf(nodes, nextNode, root), c);", "port.hold(nodes.rank(nextNode, 0), c);"),
    ("hierarchicalReduce", "port.sumCopy(c);", "port.sumKeep(c);"),
    ("hierarchicalReduce", "port.sumSend(headOf(nodes, (node + nodes.nodes - 1) % nodes.nodes, root), c);",
     "port.sumSend(root, c);"),
]

TREE = [
    ("powerBelow", "while (power <= n / 2) {", "while (power < n / 2) {", "doublingAllReduce"),
    ("doubleBetween", "port.hold(nodes.rank(node + power, 0), c);", "port.hold(nodes.rank(node ^ 1, 0), c);",
     "doublingAllReduce"),
    ("doubleBetween", "for (int bit = 1; bit < power; bit *= 2) {", "for (int bit = 2; bit < power; bit *= 2) {",
     "doublingAllReduce"),
    ("doubleBetween", "for (int bit = 1; bit < power; bit *= 2) {", "for (int bit = 1; bit < power / 2; bit *= 2) {",
     "doublingAllReduce"),
    ("doubleBetween", "const int peer = nodes.rank(node ^ bit, 0);", "const int peer = nodes.rank(node ^ 1, 0);",
     "doublingAllReduce"),
    ("doubleBetween", "if ((node & bit) == 0) {", "if (true) {", "doublingAllReduce"),
    ("doubleBetween", "if (bit * 2 < power) {", "if (bit < power) {", "doublingAllReduce"),
    ("doubleBetween", "port.sumSend(peer, c);", "port.sumKeep(c);", "doublingAllReduce"),
    ("doubleBetween", "port.sendOut(nodes.rank(node + power, 0), c);", "port.send(nodes.rank(node + power, 0), c);",
     "doublingAllReduce"),
    ("doublingAllReduce", "port.copyFinish(c);", "port.copy(c);"),
    ("doublingAllReduce", "port.recv(speaker, c);", "port.recvReduceCopy(speaker, c);"),
    ("doublingAllReduce", "if (own != speaker) {", "if (own != node) {"),
    ("doublingAllReduce", "holdNode(port, nodes, c);", "port.holdIn(c);"),
    ("doublingAllReduce", "port.sendOut(localPeer(port, nodes, k), c);", "port.send(localPeer(port, nodes, k), c);"),

    ("treePlace", "return (node - nodes.node(root) + nodes.nodes) % nodes.nodes;", "return node;",
     "treeBroadcast"),
    ("treeHead", "return headOf(nodes, (place + nodes.node(root)) % nodes.nodes, root);",
     "return headOf(nodes, place, root);", "treeReduce"),
    ("isTreeChild", "return (place & (2 * bit - 1)) == 0 && place + bit < nodes.nodes;",
     "return (place & bit) == 0 && place + bit < nodes.nodes;", "treeBroadcast"),
    ("isTreeChild", "return (place & (2 * bit - 1)) == 0 && place + bit < nodes.nodes;",
     "return (place & (2 * bit - 1)) == 0 && place + bit < nodes.nodes - 1;", "treeReduce"),
    ("treeBroadcast", "port.copy(c);", "port.copyFinish(c);"),
    ("treeBroadcast", "port.recv(treeHead(nodes, place & (place - 1), root), c);", "port.recv(root, c);"),
    ("treeBroadcast", "for (int bit = powerBelow(nodes.nodes); bit > 0; bit /= 2) {",
     "for (int bit = powerBelow(nodes.nodes) / 2; bit > 0; bit /= 2) {"),
    ("treeBroadcast", "port.sendOut(localPeer(port, nodes, k), c);", "port.sendOut(localPeer(port, nodes, 1), c);"),
    ("treeReduce", "port.send(head, c);", "port.copySend(head, c);"),
    ("treeReduce", "for (int bit = 1; bit < nodes.nodes; bit *= 2) {", "for (int bit = 1; bit < 2; bit *= 2) {"),
    ("treeReduce", "port.hold(treeHead(nodes, place + bit, root), c);",
     "port.recvReduceCopy(treeHead(nodes, place + bit, root), c);"),
    ("treeReduce", "port.sumCopy(c);", "port.sumKeep(c);"),
    ("treeReduce", "port.sumSend(treeHead(nodes, place & (place - 1), root), c);", "port.sumSend(root, c);"),
]

HIERARCHICAL_RING = [
    ("RingTurn", "const int past = ((local - first) % size + size) % size;", "const int past = local % size;",
     "hierarchicalRingReduceScatter"),
    ("RingTurn", "return past < count ? first + past : -1;", "return first + past;", "hierarchicalRingAllGather"),
    ("eachRingTurn", "const int count = nodes.smallestNode(), most = nodes.largestNode();",
     "const int count = nodes.largestNode(), most = count;", "hierarchicalRingReduceScatter"),
    ("eachRingTurn", "const int count = nodes.smallestNode(), most = nodes.largestNode();",
     "const int count = nodes.smallestNode(), most = count;", "hierarchicalRingAllGather"),
    ("ringOwner", "return local >= 0 && local < nodes.nodeSize(ownersNode) ? nodes.rank(ownersNode, local) : -1;",
     "return local >= 0 ? nodes.rank(ownersNode, local % nodes.nodeSize(ownersNode)) : -1;",
     "hierarchicalRingAllReduce"),
    ("nodeBefore", "return (node + nodes.nodes - 1) % nodes.nodes;", "return (node + 1) % nodes.nodes;",
     "hierarchicalRingAllReduce"),

    ("ringSumStep", "port.send(peer, round.chunk(owner));", "port.send(peer, round.chunk(own));",
     "hierarchicalRingReduceScatter"),
    ("ringSumStep", "port.send(peer, round.chunk(owner));", "port.sendOut(peer, round.chunk(owner));",
     "hierarchicalRingAllReduce"),
    ("ringSumStep", "for (int i = 1; i < nodes.nodeSize(node); ++i) {", "for (int i = 2; i < nodes.nodeSize(node); ++i) {",
     "hierarchicalRingReduceScatter"),
    ("ringSumStep", "if (nodeAfter(nodes, ownersNode) != node && nodes.nodes > 1) {",
     "if (ownersNode != node && nodes.nodes > 1) {", "hierarchicalRingReduceScatter"),
    ("ringSumStep", "port.hold(agentOf(nodes, nodeBefore(nodes, node), owner), c);",
     "port.hold(agentOf(nodes, nodeAfter(nodes, node), owner), c);", "hierarchicalRingReduceScatter"),
    ("ringSumStep", "holdNode(port, nodes, c);", "port.holdIn(c);", "hierarchicalRingAllReduce"),
    ("ringSumStep", "port.sumCopy(c);", "port.sumKeep(c);", "hierarchicalRingReduceScatter"),
    ("ringSumStep", "port.sumSend(agentOf(nodes, nodeAfter(nodes, node), owner), c);", "port.sumSend(owner, c);",
     "hierarchicalRingReduceScatter"),
    ("ringSumTurn", "for (int k = 1; k <= nodes.nodes; ++k) {", "for (int k = 1; k < nodes.nodes; ++k) {",
     "hierarchicalRingReduceScatter"),
    ("ringSumTurn", "ringSumStep(port, round, nodes, turn, (node + nodes.nodes - k) % nodes.nodes);",
     "ringSumStep(port, round, nodes, turn, (node + k) % nodes.nodes);", "hierarchicalRingAllReduce"),

    ("ringSpreadStep", "if (nodeAfter(nodes, node) == ownersNode) {", "if (nodeBefore(nodes, node) == ownersNode) {",
     "hierarchicalRingAllGather"),
    ("ringSpreadStep", "port.recv(before, round.chunk(owner));",
     "port.recvCopySend(before, agentOf(nodes, nodeAfter(nodes, node), owner), round.chunk(owner));",
     "hierarchicalRingAllGather"),
    ("ringSpreadStep", "port.recvCopySend(before, agentOf(nodes, nodeAfter(nodes, node), owner), round.chunk(owner));",
     "port.recv(before, round.chunk(owner));", "hierarchicalRingAllReduce"),
    ("ringSpreadStep", "port.recvCopySend(before, agentOf(nodes, nodeAfter(nodes, node), owner), round.chunk(owner));",
     "port.recvReduceSend(before, agentOf(nodes, nodeAfter(nodes, node), owner), round.chunk(owner));",
     "hierarchicalRingAllReduce"),
    ("ringSpreadStep", "port.sendOut(localPeer(port, nodes, i), round.chunk(owner));",
     "port.send(localPeer(port, nodes, i), round.chunk(owner));", "hierarchicalRingAllReduce"),
    ("ringSpreadStep", "if (theirs >= 0) {", "if (theirs > 0) {", "hierarchicalRingAllGather"),
    ("ringSpreadStep", "port.recv(peer, round.chunk(theirs));", "port.recv(peer, round.chunk(own));",
     "hierarchicalRingAllGather"),
    ("ringSpreadTurn", "if (turn.has(nodes.local(own))) {", "if (nodes.local(own) == turn.first) {",
     "hierarchicalRingAllGather"),
    ("ringSpreadTurn", "if (nodes.nodes > 1) {", "if (true) {", "hierarchicalRingAllGather"),
    ("ringSpreadTurn", "port.sendOut(agentOf(nodes, nodeAfter(nodes, node), own), round.chunk(own));",
     "port.send(agentOf(nodes, nodeAfter(nodes, node), own), round.chunk(own));", "hierarchicalRingAllReduce"),
    ("ringSpreadTurn", "port.sendOut(localPeer(port, nodes, i), round.chunk(own));",
     "port.sendOut(localPeer(port, nodes, 1), round.chunk(own));", "hierarchicalRingAllReduce"),
    ("ringSpreadTurn", "if (turn.has(nodes.local(peer))) {", "if (turn.has(nodes.local(own))) {",
     "hierarchicalRingAllGather"),
    ("ringSpreadTurn", "for (int k = 1; k < nodes.nodes; ++k) {", "for (int k = 2; k < nodes.nodes; ++k) {",
     "hierarchicalRingAllReduce"),

    ("hierarchicalRingReduceScatter", "port.copyFinish(round.chunk(0));", "port.copy(round.chunk(0));"),
    ("hierarchicalRingAllGather", "port.copy(round.chunk(port.rank()));", "port.copyFinish(round.chunk(port.rank()));"),
    ("hierarchicalRingAllGather", "port.copy(round.chunk(port.rank()));", "port.copy(round.chunk(port.rank() + 1));"),
    ("hierarchicalRingAllReduce", "hierarchicalRingReduceScatter(port, round, nodes);",
     "port.copyFinish(round.chunk(port.rank()));"),
]

# What each algorithm takes besides port and round.
ARGUMENTS = {
    "ringAllReduce": "", "ringReduceScatter": "", "ringAllGather": "", "ringBroadcast": ", call.root",
    "ringReduce": ", call.root", "oneShotAllReduce": "", "twoShotAllReduce": "", "directReduceScatter": "",
    "directAllGather": "", "directBroadcast": ", call.root", "directReduce": ", call.root",
    "hierarchicalAllReduce": ", nodes, call.stage", "hierarchicalReduceScatter": ", nodes, call.stage",
    "hierarchicalAllGather": ", nodes, call.stage", "hierarchicalBroadcast": ", call.root, nodes",
    "hierarchicalReduce": ", call.root, nodes", "doublingAllReduce": ", nodes",
    "treeBroadcast": ", call.root, nodes", "treeReduce": ", call.root, nodes", "stagedTwoShot": ", call.stage",
    "hierarchicalRingAllReduce": ", nodes", "hierarchicalRingReduceScatter": ", nodes",
    "hierarchicalRingAllGather": ", nodes"}
# Headers with their defects, and what a copy of an algorithm from each needs, in this order.
HEADERS = {"chunk.h": CHUNK, "ring.h": RING, "direct.h": DIRECT, "grouping.h": GROUPING,
           "hierarchical.h": HIERARCHICAL, "hierarchical_ring.h": HIERARCHICAL_RING, "tree.h": TREE}
NEEDS = {"ring.h": ["chunk.h", "ring.h"], "direct.h": ["chunk.h", "direct.h"],
         "hierarchical.h": ["chunk.h", "grouping.h", "hierarchical.h"],
         "hierarchical_ring.h": ["chunk.h", "grouping.h", "hierarchical.h", "hierarchical_ring.h"],
         "tree.h": ["chunk.h", "grouping.h", "hierarchical.h", "tree.h"]}


def body(text, file):
    """What stands in namespace peal."""
    found = re.search(r"^namespace peal \{\n(.*)^\}  // namespace peal$", text, re.DOTALL | re.MULTILINE)
    if not found:
        sys.exit(f"mutate.py: {file} has no 'namespace peal {{ ... }}  // namespace peal'")
    return found[1]


def mutate(text, scope, line, defect):
    """text with `line` of the function or struct `scope` replaced; the line must stand there exactly once."""
    pattern = rf"^(?:(?:constexpr )?PEAL_HD(?:_CALL)? \w+ {scope}\(|struct {scope} \{{).*?^\}};?$"
    scopes = list(re.finditer(pattern, text, re.DOTALL | re.MULTILINE))
    if len(scopes) != 1:
        sys.exit(f"mutate.py: found {len(scopes)} definitions of {scope}, not one: update the table")
    start, end = scopes[0].span()
    lines = text[start:end].split("\n")
    hits = [i for i, candidate in enumerate(lines) if candidate.strip() == line]
    if len(hits) != 1:
        sys.exit(f"mutate.py: {scope} has the line '{line}' {len(hits)} times, not once: update the table")
    lines[hits[0]] = lines[hits[0]].replace(line, defect)
    return text[:start] + "\n".join(lines) + text[end:]


def copy(name, texts, algorithm):
    """A namespace with the texts it needs and a function that runs the algorithm on the recording port."""
    home = next(file for file in NEEDS if re.search(rf"\b{algorithm}\(P& port", texts[file]))
    text = "".join(texts[file] for file in NEEDS[home])
    nodes = """  const Grouping nodes{call.nodes.ranks, call.nodes.nodes, call.nodes.nodeOf, call.nodes.localOf,
                       call.nodes.members, call.nodes.starts};
""" if "grouping.h" in NEEDS[home] else ""
    return f"""namespace peal::test::{name} {{
{text}
inline void run(record::RecordingPort& port, const record::RecordedCall& call) {{
  const Blocks blocks{{call.blocks.total, call.blocks.parts, call.blocks.starts}};
{nodes}  {algorithm}(port, Round{{blocks, call.begin, call.chunkCount}}{ARGUMENTS[algorithm]});
}}
}}  // namespace peal::test::{name}
"""


def row(name, algorithm, label):
    enumerator = algorithm[0].upper() + algorithm[1:]
    quoted = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'    {{"{quoted}", AlgorithmId::{enumerator}, &{name}::run}},\n'


def main():
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    texts = {file: re.sub(r"^ *//.*\n", "", body((folder / file).read_text(encoding="utf-8"), file), flags=re.MULTILINE)
             for file in HEADERS}
    # A copy of the cutting brings its own Blocks and Round, and shares Chunk with the recording port.
    texts["chunk.h"], removed = re.subn(r"^struct Chunk \{.*?^\};$", "", texts["chunk.h"],
                                        flags=re.DOTALL | re.MULTILINE)
    if removed != 1:
        sys.exit("mutate.py: chunk.h has no struct Chunk")
    parts, mutants, originals = [], "", ""
    for algorithm in ARGUMENTS:
        name = "original_" + algorithm
        parts.append(copy(name, texts, algorithm))
        originals += row(name, algorithm, algorithm)
    number = 0
    for file, table in HEADERS.items():
        for scope, line, defect, *checked in table:
            number += 1
            name, algorithm = f"m{number:03}", checked[0] if checked else scope
            changed = dict(texts, **{file: mutate(texts[file], scope, line, defect)})
            parts.append(copy(name, changed, algorithm))
            where = scope if scope == algorithm else f"{scope} (in {algorithm})"
            mutants += row(name, algorithm, f"{where}: {line} -> {defect}")
    for function, rows in (("originals", originals), ("mutants", mutants)):
        parts.append(f"std::span<const peal::test::Mutant> peal::test::{function}() {{\n"
                     f"  static const Mutant kList[] = {{\n{rows}  }};\n  return kList;\n}}\n")
    head = '// Written by mutate.py.\n#include "tests/algorithms/mutants/mutants.h"\n\n'
    output.write_text(head + "\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
