// The keys of [parallel] and [offload], which distribute the work over ranks and between device and host.
#include "config/declare.h"
#include "config/sharding_spec.h"
#include "config/strategies.h"

namespace trainer::config {

void declare_parallel(std::vector<Key>& keys) {
  Declare<Parallel> parallel(keys, "parallel", &Config::parallel);
  using enum StrategyName;
  const std::vector<StrategyName> flat = {megatron_1d, fsdp, optimus_2d, axonn_4d, autoddl};
  StringList names;
  for (const NamedStrategy* strategy : strategies()) names.emplace_back(strategy->name);
  names.emplace_back(name_of(automatic));
  parallel.choice(
      "strategy", &Parallel::strategy, megatron_1d, names,
      "Parallelism within a replica. megatron-1d: tensor parallelism over columns and rows of the weights; "
      "fsdp: fully sharded data parallelism (ZeRO-3), which splits sequences and shards weights; "
      "optimus-2d: 2D tensor parallelism on a square mesh, whose rows split the sequences; axonn-4d: tensor "
      "parallelism over two axes, and a third that splits sequences and shards weights; autoddl: a sharding "
      "spec for each layer; auto: the fastest layout predicted with hardware.profile, within the keys that "
      "are set; a resumed run keeps its layout if it fits.");
  parallel.integer("data", &Parallel::data, 0,
                   {.range = between(1, 1e6), .unit = "replicas", .derived = "ranks / ranks of one replica"},
                   "Data parallelism: replicas of the model, each with its own sequences.");
  parallel.integer("stages", &Parallel::stages, 1, {.range = between(1, 1024), .unit = "stages"},
                   "Pipeline parallelism: stages of a replica, each with consecutive layers on ranks of its own, which "
                   "the strategy shares out. For models that do not fit otherwise, and for slow networks. A step needs "
                   "several micro-batches per stage: of m + stages - 1 turns, stages - 1 are idle.");
  parallel.integer("chunks", &Parallel::chunks, 1, {.range = between(1, 64), .unit = "chunks"},
                   "Chunks of layers per stage (interleaved 1F1B): idle time is divided by this number, and messages "
                   "are multiplied by it. Micro-batches per step must be a multiple of stages.");
  parallel.choice("pipeline_schedule", &Parallel::pipeline_schedule, {}, {"1f1b", "zb-h1"},
                  "Order of the stages' passes. 1f1b: one forward and one backward pass each; zb-h1: weight gradients "
                  "are computed later, in the turns that would be idle, so that a third of these remains. It takes "
                  "chunks = 1 and memory for what the weight gradients need: much with recompute = \"full\".");
  parallel.integers("stage_layers", &Parallel::stage_layers, {}, {.range = between(0, 100'000)},
                    "Layers of each chunk, stages * chunks numbers in the order of the layers; chunk c is on stage "
                    "c mod stages. Only the first chunk, which has the embedding, and the last one, which has the "
                    "head, may have none. []: chosen, so that the largest chunk has the fewest FLOPs, head included.");
  parallel.integer("tensor", &Parallel::tensor, 1,
                   {.range = between(1, 65'536), .unit = "ranks", .strategies = {megatron_1d}},
                   "megatron-1d: tensor-parallel ranks of a replica.");
  parallel.boolean(
      "sequence_parallel", &Parallel::sequence_parallel, true,
      "megatron-1d: split norms, dropout and the residual stream by token rows over the tensor ranks, which "
      "saves memory but sends a quarter more bytes. false: every tensor rank computes all rows.",
      {.strategies = {megatron_1d}});
  parallel.integer(
      "shards", &Parallel::shards, 0,
      {.range = between(1, 65'536), .unit = "ranks", .derived = "ranks / data", .strategies = {fsdp}},
      "fsdp: ranks that shard the weights, gradients and optimizer state of a replica. They split its "
      "sequences, so shards / context must divide train.micro_batch. With data above 1: hybrid sharding (HSDP).");
  parallel.integer(
      "context", &Parallel::context, 1,
      {.range = between(1, 65'536), .unit = "ranks", .strategies = {megatron_1d, fsdp, optimus_2d, axonn_4d}},
      "Context parallelism: ranks that share each sequence, for long sequences, or fewer sequences than ranks. "
      "megatron-1d: a replica has tensor * context ranks; fsdp: context of the shards' ranks, axonn-4d: of the z "
      "ranks, so it must divide them; optimus-2d: 1, or all ranks of a column of the mesh. Ranks that split tokens "
      "(context / context_heads of them) have two pieces of every sequence, an early and a late one, so that all have "
      "equal work: twice their number must divide model.seq_len. autoddl: letter s instead.");
  parallel.integer(
      "context_heads", &Parallel::context_heads, 0,
      {.range = between(0, 65'536), .unit = "ranks", .strategies = {fsdp}},
      "fsdp: number of context ranks that split heads in attention, by all-to-alls (Ulysses); context / context_heads "
      "ranks split tokens and exchange keys and values. Must divide context and model.n_head. 0: whichever sends the "
      "fewest bytes; 1: tokens only; context: heads only.");
  parallel.choice(
      "context_kv", &Parallel::context_kv, Panels::automatic, {"auto", "gather", "ring"},
      "How keys and values reach the ranks that have other tokens of a sequence. gather: all-gather, some heads at a "
      "time; ring: from rank to rank, each step overlapped with attention to the previous block, which takes less "
      "memory; auto: gather if a rank has two key heads or more and it fits in memory, else ring; a resumed run keeps "
      "its choice. Layers with a window receive only the segments that they see.",
      {.strategies = {megatron_1d, fsdp, optimus_2d, axonn_4d, autoddl}});
  parallel.integer(
      "experts", &Parallel::experts, 1, {.range = between(1, 1024), .unit = "ranks", .strategies = {megatron_1d, fsdp}},
      "Expert parallelism: ranks that divide the experts of a layer and exchange the tokens' rows. Must divide "
      "model.n_expert, and for fsdp shards / context. Saves memory and, if there are many experts, communication.");
  parallel.number("expert_buffer", &Parallel::expert_buffer, 1.5,
                  {.range = between(1, 1024), .strategies = {megatron_1d, fsdp, autoddl}},
                  "With experts on several ranks: rows that a rank receives in one round of their exchange, relative "
                  "to the mean, at most the number of these ranks. Larger: more memory, fewer rounds if loads are "
                  "uneven. Tokens are never dropped.");
  parallel.integers("mesh", &Parallel::mesh, {1, 1}, {.range = between(1, 4096), .strategies = {optimus_2d}},
                    "optimus-2d: [q, q] or [q, q, d], the ranks of a replica. Mesh rows split sequences, mesh columns "
                    "split heads and features; weights are split over both. d: number of q x q meshes, which have the "
                    "same weights and split the sequences of a micro-batch (2.5D).");
  parallel.choice("stationary", &Parallel::stationary, Stationary::automatic, {"auto", "paper"},
                  "optimus-2d: the stationary matrix of a GEMM, which is not communicated. auto: the largest; paper: "
                  "always the output, so that the wide input of the down projection is sent.",
                  {.strategies = {optimus_2d}});
  parallel.choice(
      "panels", &Parallel::panels, Panels::automatic, {"auto", "gather", "ring"},
      "optimus-2d: communication of a GEMM's operand blocks. gather: all-gather, then one large GEMM, which "
      "is faster but requires memory for whole rows and columns of blocks; ring: block by block, each "
      "overlapped with the GEMM of the previous block, with less memory in large models; auto: gather if it fits in "
      "memory, else ring; a resumed run keeps its choice.",
      {.strategies = {optimus_2d}});
  parallel.integers("node_tile", &Parallel::node_tile, {1, 1}, {.range = between(1, 4096), .strategies = {optimus_2d}},
                    "optimus-2d: [r, c], both divisors of q: every r * c consecutive ranks (such as those of a host) "
                    "form a tile of r rows and c columns of the mesh. [1, 1]: row-major order.");
  parallel.integers(
      "grid", &Parallel::grid, {1, 1, 1}, {.range = between(1, 65'536), .strategies = {axonn_4d}},
      "axonn-4d: [x, y, z], the ranks of a replica. x splits heads, the feed-forward layer and the vocabulary; y the "
      "residual stream's features; z the sequences and, as in FSDP, the weights, which are all-gathered before use.");
  parallel.choice("order", &Parallel::order, AxisOrder::yxzd, {std::begin(kAxisOrderNames), std::end(kAxisOrderNames)},
                  "axonn-4d: order of the mesh axes, innermost (consecutive ranks) first; d: replicas.",
                  {.strategies = {axonn_4d}});
  parallel.choice(
      "vocab_axes", &Parallel::vocab_axes, VocabAxes::automatic,
      {std::begin(kVocabAxesNames), std::end(kVocabAxesNames)},
      "axonn-4d: axes that split the vocabulary in the embedding and the head. x: y splits the table's features, and "
      "the logits are all-reduced over y in fp32; xy: the features are all-gathered over y, and logits are not "
      "communicated; auto: whichever sends fewer bytes, usually xy; a resumed run keeps its choice.",
      {.strategies = {axonn_4d}});
  parallel.boolean("overlap.all_reduce", &Parallel::overlap_all_reduce, true,
                   "Overlap the collectives on activations and their gradients with GEMMs, such as the all-reduce of "
                   "activation gradients with the GEMM of the weight gradient. Results are bitwise identical, as for "
                   "the next two keys.");
  parallel.boolean("overlap.reduce_scatter", &Parallel::overlap_reduce_scatter, true,
                   "Strategies with weights in flat shards: overlap the reduce-scatter of weight gradients with the "
                   "backward GEMMs of earlier layers.",
                   {.strategies = flat});
  parallel.boolean("overlap.all_gather", &Parallel::overlap_all_gather, true,
                   "Strategies with weights in flat shards: overlap the all-gather of the next linear's weights with "
                   "the current GEMM.",
                   {.strategies = flat});
  parallel.integer(
      "cache_layers", &Parallel::cache_layers, 0, {.range = between(0, 10'000), .unit = "layers", .strategies = flat},
      "Strategies with weights in flat shards: number of layers, from the first, whose weights are gathered once and "
      "kept for a whole step instead of being gathered for each use. Above 0, the vocabulary's tables are kept as "
      "well. With panels = \"ring\": only the tables.");
  parallel.dtype(
      "sum_dtype", &Parallel::sum_dtype, {DType::bf16, DType::f32},
      "Type in which bf16 runs reduce partial sums of activations and of their gradients over ranks. fp32: "
      "twice the bytes, but the sum over many ranks is rounded only once; try it from 8 tensor ranks on, and with "
      "model.norm_place = \"post\", where norms follow these sums. Sums of key and value gradients over ranks that "
      "share heads stay in bf16, those over ranks that share sequences are always in fp32.");
  parallel.dtype(
      "rs_dtype", &Parallel::rs_dtype, {DType::f32, DType::bf16},
      "Strategies with weights in flat shards: type of the reduce-scatter of weight gradients in bf16 runs. "
      "bf16: half the bytes, but every addition is rounded to bf16. With panels = \"ring\": for the vocabulary's table "
      "only.",
      {.strategies = flat});
  parallel.integers("axes", &Parallel::axes, {1}, {.range = between(1, 65'536), .strategies = {autoddl}},
                    "autoddl: mesh of a replica, one to six axis sizes, outermost first; the sharding specs below have "
                    "one letter per axis.");
  std::vector<Member<LayerSpec>> spec = {member("layers", Type::integer, &LayerSpec::layers)};
  for (const SpecMember& each : kSpecMembers)
    spec.push_back(member(std::string(each.name).c_str(), Type::string, each.member));
  parallel.tables(
      "layer", &Parallel::layer, spec, {.strategies = {autoddl}},
      "autoddl: tables [[parallel.layer]], in layer order, each for `layers` consecutive layers (default: all "
      "remaining layers). A sharding spec is a string with one letter per mesh axis: the dimension that the axis "
      "splits. Specs of activations (stream; attention; hidden, between up and down): r rows, c columns, - none; of "
      "attention also s: rows, tokens of a sequence included. "
      "Specs of the linears qkv, out, up and down: r rows, c columns, k the contraction dimension, f rows, with "
      "the weights stored in flat shards, - none. experts: e divides the experts, - none; empty: none does. "
      "schedule: at_once: one GEMM; ring: one GEMM per block (SUMMA).");
  parallel.string("head", &Parallel::head, "", {.strategies = {autoddl}},
                  "autoddl: sharding spec of the final norm and the head, with the letters of stream; empty: that of "
                  "the last layer's "
                  "stream.");
  parallel.string("table", &Parallel::table, "", {.strategies = {autoddl}},
                  "autoddl: sharding spec of the embedding table and the head: v vocabulary, h features, f flat "
                  "shards, - replicated; empty: f for each axis with r in head, h for each with c, else v.");
  parallel.integer(
      "zero_stage", &Parallel::zero_stage, 0, {.range = between(0, 1)},
      "ZeRO stage. 0: off; 1: shard the optimizer state over the replicas. Stage 3 is strategy = \"fsdp\".");
  parallel.choice(
      "transport", &Parallel::transport, Transport::automatic, {std::begin(kTransportNames), std::end(kTransportNames)},
      "Transport of tensors between ranks. auto: under mpirun, nccl if every rank has its own GPU, else mpi; without "
      "mpirun, a single rank. nccl: NCCL, requires mpirun. mpi: MPI, with GPU tensors copied through the host, so that "
      "ranks may share a GPU. threads: all ranks are threads of one process, without mpirun, for tests and debugging.");
  parallel.integer(
      "lanes", &Parallel::lanes, 0, {.range = between(1, 3), .derived = "3, or 1 with NCCL"},
      "Number of independent communication channels: 3 for activations, weights and gradients; 1 shared by "
      "all. With NCCL, more than 1 needs more GPU memory, and may deadlock if NCCL is older than 2.26.");
  parallel.number("timeout", &Parallel::timeout, 600, {.range = above(0), .unit = "s"},
                  "A rank that does not respond for this long is considered lost: the other ranks report it and stop "
                  "with exit status 7.");
}

void declare_offload(std::vector<Key>& keys) {
  Declare<Offload> offload(keys, "offload", &Config::offload);
  offload.choice(
      "optimizer", &Offload::optimizer, OffloadOptimizer::none, {"none", "cpu", "interleaved"},
      "Optimizer offload: where master weights and moments are stored and updated. none: on the device; cpu: in "
      "host memory, by the CPU; interleaved: in host memory, partly by the CPU and partly by the device. "
      "Results are bitwise identical.");
  offload.word("gpu_fraction", &Offload::gpu_fraction, "auto", {.needs = kOffload},
               "interleaved: share of the subgroups that are copied to the device and back for their update: a "
               "fraction \"a/b\" or a number from 0 to 1; \"auto\": chosen from measured rates.");
  offload.integer("subgroup", &Offload::subgroup, 100'000'000,
                  {.range = between(64, 1e12), .unit = "elements", .needs = kOffload},
                  "Largest number of elements in a subgroup, which is updated as a unit.");
  offload.integer("slots", &Offload::slots, 3, {.range = between(1, 64), .unit = "subgroups", .needs = kOffload},
                  "interleaved: number of subgroups that fit on the device at a time, including those being "
                  "copied in or out.");
  offload.integer("resident", &Offload::resident, 0, {.range = between(0, 1e6), .unit = "subgroups", .needs = kOffload},
                  "interleaved: number of subgroups, from the first, that stay on the device.");
  offload.choice("grad_transport", &Offload::grad_transport, GradTransport::fp32, {"fp32", "bf16"},
                 "Type in which gradients are copied to the host. bf16: half the bytes, but every gradient is rounded "
                 "after the norm is computed, even with optimizer = \"none\", so results differ from fp32, but do not "
                 "depend on the other keys of [offload].");
  offload.boolean("pinned", &Offload::pinned, true,
                  "Pin host memory, so that copies to and from a GPU run at link speed and overlap with kernels. "
                  "If the system refuses to pin memory, it stays pageable, and the log says so.",
                  {.needs = kOffload});
}

}  // namespace trainer::config
