// Muon on ranks that are processes has the bits of one rank, given equal gradients.
#include "rigs/muon.h"
#include "mpi/mpi_main.h"

namespace trainer::tests {
namespace {

TEST(MpiMuon, HasTheBitsOfOneRankGivenEqualGradients) {
  comm::World& world = comm::test_world();
  config::Config c = with_muon(tiny_config());
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.seq_len = 12;
  c.parallel.tensor = world.size() % 2 == 0 ? 2 : 1;  // a world has one mesh, so the layout depends on its size
  c.parallel.data = world.size() / c.parallel.tensor;
  c.train.global_batch = 4 * c.parallel.data;
  std::mutex mutex;
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    Tensors one;
    update_by_formula(nullptr, on_one_rank(c), compute, 3, one, mutex);
    for (const auto owners : {config::MuonOwners::all, config::MuonOwners::replica})
      for (const int64_t zero : {0, 1})
        for (const bool overlap : {true, false}) {
          if (zero == 1 && c.parallel.data == 1) continue;
          SCOPED_TRACE(format("{}, {}, ZeRO {}, overlap {}", name_of(compute),
                              owners == config::MuonOwners::all ? "all" : "replica", zero, overlap));
          config::Config each = c;
          each.muon.owners = owners;
          each.parallel.zero_stage = zero;
          each.debug.overlap = overlap;
          world.control().barrier();  // ranks may arrive here further apart than the timeout
          Tensors own;
          update_by_formula(&world, each, compute, 3, own, mutex);
          expect_same_where_owned(own, one);
        }
  }
}

}  // namespace
}  // namespace trainer::tests
