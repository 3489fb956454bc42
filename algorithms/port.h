// The port: what an algorithm sees of its own rank. A concept, not a class: the host executor and the
// recorder each have one, and every algorithm is a template over it.
//
// The operation's array has elements [0, total). `in` is this rank's input and `out` its output, each
// addressed by positions of that array even when the buffer holds only a part of it (reduce-scatter's
// output, all-gather's input): the port subtracts the buffer's own start.
//
// Messages. A verb that sends hands exactly one message to the link, a verb that receives takes exactly
// one, even when the chunk is empty: both ends count the same steps, and the digest travels with the
// first. A message fits one slot: the caller keeps Round::chunkCount small enough. Links are in order; a
// verb waits for its message and for a free slot, and does nothing else. After a fault (abort, deadline,
// dead peer) every verb returns at once.
//
// Own input is multiplied by the pre-multiplied sum's scalar wherever a verb says "own": every use of `in`.
// "finish" is the average's division; verbs that produce a final value apply it, marked (finish) below.
//
//   verb                               message from   value                          kept in out  message to
//   send(to, c)                                       own                                         to
//   copySend(to, c)                                   own                            out          to
//   sendOut(to, c)                                    out, as written before                      to
//   recv(from, c)                      from           got                            out
//   recvCopySend(from, to, c)          from           got                            out          to
//   recvReduceSend(from, to, c)        from           got op own                                  to
//   recvReduceCopy(from, c)            from           got op own (finish)            out
//   recvReduceCopySend(from, to, c)    from           got op own (finish)            out          to
//   copy(c)                                           own                            out
//   copyFinish(c)                                     own (finish)                   out
//   sendAll(c)                                        own                                         every other
//   sendOutAll(c)                                     out, as written before                      every other
//   recvReduceAll(c)                   every other    all ranks' values in rank      out
//                                                     order, own included, one
//                                                     rounding (finish)
//
// A sum of chosen terms, for algorithms that know nodes (SumPort): hold names its terms one by one, in the
// order of the sum; the next sum verb adds them up, rounds once if there are several, and gives their slots
// back. Terms and sum have the same chunk. At most one term comes from each rank.
//
//   hold(from, c)                      from           got, the next term
//   holdIn(c)                                         own, the next term
//   holdOut(c)                                        out, the next term
//   sumSend(to, c)                                    the sum                                     to
//   sumKeep(c)                                        the sum; may be overwritten   out
//   sumCopy(c)                                        the sum (finish)              out
//
// What sumKeep stores is sent by holdOut and sumSend, never by sendOut, which may hand over a reference.
//
// sendAll and sendOutAll stage the bytes once for all receivers and need a free slot on every link.
// send, sendAll and the out forms may hand over a reference to registered memory instead of bytes: the
// receiver then reads the buffer in place, and the port waits at the operation's end (and before the same
// part of `in` is overwritten, if in == out) until it has.
#pragma once
#include <concepts>

#include "algorithms/chunk.h"

namespace peal {

template <class P>
concept Port = requires(P& port, int peer, Chunk c) {
  { port.rank() } -> std::convertible_to<int>;
  { port.size() } -> std::convertible_to<int>;
  port.send(peer, c);
  port.copySend(peer, c);
  port.sendOut(peer, c);
  port.recv(peer, c);
  port.recvCopySend(peer, peer, c);
  port.recvReduceSend(peer, peer, c);
  port.recvReduceCopy(peer, c);
  port.recvReduceCopySend(peer, peer, c);
  port.copy(c);
  port.copyFinish(c);
  port.sendAll(c);
  port.sendOutAll(c);
  port.recvReduceAll(c);
};

// What algorithms over nodes need besides. The device port has it for messages of the protocol Simple.
template <class P>
concept SumPort = Port<P> && requires(P& port, int peer, Chunk c) {
  port.hold(peer, c);
  port.holdIn(c);
  port.holdOut(c);
  port.sumSend(peer, c);
  port.sumKeep(c);
  port.sumCopy(c);
};

}  // namespace peal
