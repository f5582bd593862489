#pragma once
// Messages on links around a ring of all ranks, in both directions at once: the same cases for ranks that are threads
// (links_test.cpp) and processes (tests/mpi).
#include <set>

#include "comm/collective.h"
#include "unit/comm/rig.h"

namespace trainer::comm {

/// A link of this rank, with a tensor for each message.
template <typename T>
struct LinkCase {
  int from = 0;  // the sender
  std::unique_ptr<Communicator> comm;
  std::vector<std::vector<T>> messages;
  std::vector<Ticket> tickets;
  bool sends() const { return comm->rank() == 0; }
};

/// Returns the group of the link from `from` to its neighbour in the ring of all ranks.
inline Group link_group(const World& world, int from, Way way, std::string name = "stage") {
  const int g = world.size(), to = (from + (way == Way::forward ? 1 : g - 1)) % g;
  return {.axes = 1,
          .name = std::move(name),
          .members = {from, to},
          .index = world.rank() == from ? 0 : 1,
          .link = link_in_ring(g, from, way)};
}

/// Sends tensors of these sizes over every link of the ring in both directions, all in flight at once, and checks every
/// element and the count of bytes.
template <typename T>
void check_links(World& world, const std::vector<int64_t>& sizes) {
  const int g = world.size(), me = world.rank();
  if (g == 1) return;
  Rig rig;
  std::vector<LinkCase<T>> links;
  for (const Way way : {Way::forward, Way::back})
    for (const int from : {me, (me + (way == Way::forward ? g - 1 : 1)) % g})
      links.push_back({from, world.communicator(rig.device, link_group(world, from, way), Purpose::critical), {}, {}});
  std::set<int> numbers;
  int64_t sent = 0;
  for (LinkCase<T>& link : links) {
    const int number = link.comm->group().link;
    EXPECT_TRUE(numbers.insert(number).second) << "link " << number << " twice among " << g;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const uint64_t salt = static_cast<uint64_t>(number) * 100 + i;
      link.messages.push_back(values<T>(link.from, sizes[i], link.sends() ? salt : ~salt));
      if (link.sends()) sent += sizes[i];
    }
  }
  EXPECT_EQ(rig.device.memory_total(), 0) << "links need no memory";
  const int64_t before = world.bytes_sent();
  for (size_t i = 0; i < sizes.size(); ++i)
    for (LinkCase<T>& link : links) link.tickets.push_back(link.comm->send(rig.ex, tensor_of(link.messages[i])));
  std::rotate(links.begin(), links.begin() + me % 4, links.end());  // joined in a different order on each rank
  for (size_t i = sizes.size(); i-- > 0;)
    for (LinkCase<T>& link : links) link.tickets[i].join(rig.ex);
  for (const LinkCase<T>& link : links)
    for (size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(same_bits(link.messages[i],
                            values<T>(link.from, sizes[i], static_cast<uint64_t>(link.comm->group().link) * 100 + i)))
          << sizes[i] << " elements from " << link.from << " on link " << link.comm->group().link << ", rank " << me;
  const int64_t bytes = sent * static_cast<int64_t>(sizeof(T));
  EXPECT_EQ(world.bytes_sent() - before, bytes);
  ASSERT_EQ(rig.meter.comm().size(), 1u);
  const auto& [key, count] = *rig.meter.comm().begin();
  EXPECT_EQ(key, (CommKey{1, CommOp::send, DTypeOf<T>::value}));
  EXPECT_EQ(count.calls, 2 * static_cast<int64_t>(sizes.size())) << "only its sender counts a message";
  EXPECT_EQ(count.elements, sent);
  EXPECT_EQ(count.wire_bytes, bytes);
  world.control().barrier();
}

/// Empty and uneven messages, and messages of several segments.
inline std::vector<int64_t> message_sizes(int64_t unit) {
  return {3, 0, 1, 1001, kDirectElements + 1, 3 * kSmallestSegment / unit + 5, 5 * kLargestSegment / unit + 1, 0, 7};
}

template <typename T>
void check_links(World& world) {
  check_links<T>(world, message_sizes(sizeof(T)));
}

}  // namespace trainer::comm
