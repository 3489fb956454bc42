// The id that all ranks of a launch work out alone: where rank 0 listens, and a secret. See bootstrap.h.
//
// The secret comes from PEAL_SECRET and the job's identity. Without PEAL_SECRET it is only as good as that
// identity is hard to guess: Open MPI gives a random key; a job number, a user number and an address are no
// secret. It then keeps jobs from mixing by accident, not out an attacker who knows these and can reach the
// port. (A local socket also asks the system whether the other side is of the same user, which no password
// need improve.)
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "lib/base/config.h"
#include "lib/bootstrap/launch.h"
#include "lib/bootstrap/nodelist.h"
#include "lib/bootstrap/open_root.h"
#include "lib/bootstrap/root.h"

namespace peal {
namespace {

// Below the ports that Linux hands out by itself (from 32768), so that few are taken.
constexpr uint32_t kFirstPort = 12000;
constexpr uint32_t kPorts = 20000;

// What all ranks of the launch know in common.
struct Common {
  std::string identity;  // of the job and of this call
  IdContent content;     // the secret is set
};

Common commonGround(const Launch& launch, const Surroundings& surroundings, const std::string& password) {
  // All ranks make communicators in the same order, so their calls have the same number. It keeps a rank that
  // is already at its next rendezvous from knocking at the last one.
  static std::atomic<uint64_t> calls{0};  // relaxed: only the numbers matter
  const uint64_t call = calls.fetch_add(1, std::memory_order_relaxed);
  Common common;
  common.identity = jobIdentity(launch, surroundings) + fmt::format("\ncall {}", call);
  const Key secret =
      deriveKey(keyOfText(password), "launch secret", viewOf(std::string_view(common.identity)));
  std::copy_n(secret.begin(), common.content.secret.size(), common.content.secret.begin());
  common.content.start = RootStart::Maybe;
  return common;
}

uint16_t derivedPort(const std::string& identity, const Configuration& table) {
  if (table.integer(Knob::Port) != 0) {
    return static_cast<uint16_t>(table.integer(Knob::Port));
  }
  const Key key = keyOfText("port of " + identity);
  return static_cast<uint16_t>(kFirstPort + readInteger<uint32_t>(viewOf(key)) % kPorts);
}

struct Meeting {
  std::vector<std::string> hosts;  // names or addresses of one machine
  uint16_t port = 0;
  std::string wantedBy;  // for sentences
};

// Open MPI tells every rank where its mpirun can be reached, and puts rank 0 on that machine unless it was
// told otherwise. `uri`: "2345.0;tcp://192.0.2.1,198.51.100.1:40000".
std::vector<std::string> mpirunAddresses(const std::string& uri) {
  constexpr std::string_view kScheme = "tcp://";
  std::vector<std::string> addresses;
  const size_t scheme = uri.find(kScheme);
  const size_t colon = scheme == std::string::npos ? scheme : uri.find(':', scheme + kScheme.size());
  if (colon == std::string::npos) {
    return addresses;
  }
  std::string_view list(uri);
  list = list.substr(0, colon).substr(scheme + kScheme.size());
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    addresses.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return addresses;
}

// An address, not a name, and this machine's own.
bool isOwnAddress(const std::string& host) {
  if (!isNumericHost(host)) {
    return false;
  }
  const Result<std::vector<Address>> resolved = resolveHost(host, 0);
  const Result<std::vector<InterfaceAddress>> locals = localAddresses();
  return resolved && locals &&
         std::any_of(locals->begin(), locals->end(), [&](const InterfaceAddress& local) {
           return local.address.sameHost(resolved->front());
         });
}

// Where rank 0 of a launch over several machines listens.
Result<Meeting> meetingPlace(const Launch& launch, const Surroundings& surroundings,
                             const std::string& identity, const Configuration& table) {
  if (const auto root = surroundings.variable("PEAL_ROOT")) {
    const Result<HostAndPort> at = parseHostPort(*root, "PEAL_ROOT");
    if (!at) {
      return at.error();
    }
    return Meeting{{at->host}, at->port, "PEAL_ROOT=" + *root};
  }
  const uint16_t port = derivedPort(identity, table);
  const auto master = surroundings.variable("MASTER_ADDR");
  if (master) {
    return Meeting{{*master},
                   port,
                   fmt::format("the launch by {} (MASTER_ADDR={}, port {}; PEAL_ROOT=host:port overrides)",
                               launch.launcher, *master, port)};
  }
  if (launch.launcher == "slurm") {
    auto nodes = surroundings.variable("SLURM_STEP_NODELIST");
    nodes = nodes ? nodes : surroundings.variable("SLURM_JOB_NODELIST");
    const std::optional<std::string> first = nodes ? firstHost(*nodes) : std::nullopt;
    const bool elsewhere = launch.rank == 0 && surroundings.variable("SLURM_NODEID").value_or("0") != "0";
    if (first && !elsewhere) {
      return Meeting{{*first},
                     port,
                     fmt::format("the launch by Slurm (first of {}, port {}; PEAL_ROOT=host:port overrides)",
                                 *nodes, port)};
    }
  }
  const std::vector<std::string> mpirun =
      launch.launcher == "openmpi"
          ? mpirunAddresses(surroundings.variable("OMPI_MCA_orte_hnp_uri").value_or(""))
          : std::vector<std::string>{};
  const bool beside = launch.rank != 0 || std::any_of(mpirun.begin(), mpirun.end(), isOwnAddress);
  if (!mpirun.empty() && beside) {
    return Meeting{
        mpirun, port,
        fmt::format("the launch by Open MPI (mpirun's machine {}, port {}; PEAL_ROOT=host:port overrides)",
                    fmt::join(mpirun, ", "), port)};
  }
  return Error{
      pealInvalidUsage,
      fmt::format("rank {} of {}, started by {} with {} ranks on this machine, cannot tell where rank 0 "
                  "listens{}. Set PEAL_ROOT=host:port on every rank: a host name or address of rank 0's "
                  "machine, and a free port.",
                  launch.rank, launch.size, launch.launcher,
                  launch.localSize < 0 ? "an unknown number of" : std::to_string(launch.localSize),
                  mpirun.empty() ? "" : ": mpirun does not run on this machine")};
}

Result<pealUniqueId> meetOverTcp(const Launch& launch, Common common, const Meeting& meeting,
                                 const Configuration& table) {
  common.content.place = RootPlace::Tcp;
  common.content.port = meeting.port;
  std::vector<Address> addresses;
  for (const std::string& host : meeting.hosts) {
    Result<std::vector<Address>> resolved = resolveHost(host, meeting.port);
    if (!resolved) {
      return Error{resolved.error().code,
                   fmt::format("{} (wanted by {})", resolved.error().message, meeting.wantedBy)};
    }
    addresses.insert(addresses.end(), resolved->begin(), resolved->end());
  }
  common.content.addresses = addresses;
  if (launch.rank != 0) {
    return encodeId(common.content);
  }
  // An address is meant as it stands. A name is not: many machines know themselves as 127.0.1.1.
  const bool exactly = meeting.hosts.size() == 1 && isOwnAddress(meeting.hosts.front());
  endLaunchRoots();
  Result<OpenedRoot> root = exactly
                                ? openTcpRootAt(addresses, meeting.wantedBy)
                                : openTcpRoot(meeting.port, table.text(Knob::Interface), meeting.wantedBy);
  if (!root) {
    return root.error();
  }
  common.content.addresses = root->offered;
  PEAL_TRY(startRoot(common.content, std::move(root->listeners), table.integer(Knob::InitTimeoutMs),
                     RootUse::Launch));
  return encodeId(common.content);
}

Result<pealUniqueId> meetOnThisMachine(const Launch& launch, Common common, const Configuration& table) {
  common.content.place = RootPlace::Unix;
  // Everybody on the machine can read the name, so it must tell nothing of the password.
  const Key name = keyOfText("local socket of " + common.identity);
  common.content.name = "peal-";
  for (size_t i = 0; i < 16; ++i) {
    common.content.name += fmt::format("{:02x}", name[i]);
  }
  if (launch.rank == 0) {
    endLaunchRoots();
    Result<OpenedRoot> root = openUnixRoot(common.content.name);
    if (!root) {
      return root.error();
    }
    PEAL_TRY(startRoot(common.content, std::move(root->listeners), table.integer(Knob::InitTimeoutMs),
                       RootUse::Launch));
  }
  return encodeId(common.content);
}

}  // namespace

Result<pealUniqueId> launchUniqueId(const Launch& launch) {
  PEAL_TRY(startSodium());
  const Result<Configuration>& table = configuration();
  if (!table) {
    return table.error();
  }
  const Surroundings surroundings = realSurroundings();
  Common common = commonGround(launch, surroundings, table->text(Knob::LaunchSecret));
  if (launch.size == 1) {
    // Nobody else to meet: a name that nobody can know.
    common.identity += fmt::format("\nalone {} {}", getpid(), readInteger<uint64_t>(viewOf(freshNonce())));
    return meetOnThisMachine(launch, std::move(common), *table);
  }
  if (launch.localSize == launch.size && !surroundings.variable("PEAL_ROOT")) {
    return meetOnThisMachine(launch, std::move(common), *table);
  }
  const Result<Meeting> meeting = meetingPlace(launch, surroundings, common.identity, *table);
  if (!meeting) {
    return meeting.error();
  }
  return meetOverTcp(launch, std::move(common), *meeting, *table);
}

}  // namespace peal
