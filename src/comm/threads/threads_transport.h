#pragma once
// The transport for ranks that are threads of one process: a receiver copies directly from the sender's memory.
#include <memory>

#include "comm/transport.h"

namespace trainer::comm {

/// The shared state through which the ranks of one world communicate.
class Exchange;
std::shared_ptr<Exchange> make_exchange(int ranks);
std::unique_ptr<Transport> threads_transport(std::shared_ptr<Exchange> exchange, int rank);

}  // namespace trainer::comm
