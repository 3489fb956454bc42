// pealGetUniqueId: listens, starts the root service and writes down where and how to join. See bootstrap.h.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/config.h"
#include "lib/bootstrap/bootstrap.h"
#include "lib/bootstrap/id.h"
#include "lib/bootstrap/open_root.h"

namespace peal {

Result<pealUniqueId> createUniqueId() {
  PEAL_TRY(startSodium());
  const Result<Configuration>& table = configuration();
  if (!table) {
    return table.error();
  }
  const auto port = static_cast<uint16_t>(table->integer(Knob::Port));
  Result<OpenedRoot> opened =
      openTcpRoot(port, table->text(Knob::Interface), port == 0 ? "" : fmt::format("PEAL_PORT={}", port));
  if (!opened) {
    return opened.error();
  }
  IdContent content;
  content.port = opened->port;
  content.addresses = std::move(opened->offered);
  const Nonce secret = freshNonce();
  std::copy(secret.begin(), secret.end(), content.secret.begin());
  PEAL_TRY(startRoot(content, std::move(opened->listeners), table->integer(Knob::InitTimeoutMs),
                     RootUse::UniqueId));
  return encodeId(content);
}

}  // namespace peal
