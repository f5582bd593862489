// The keys of [parallel] and [offload]: how ranks and the host share the work.
#include "base/format.h"
#include "config/declare.h"

namespace trainer::config {

void declare_parallel(std::vector<Key>& keys) {
  Declare<Parallel> parallel(keys, "parallel", &Config::parallel);
  constexpr const char *kMegatron = "megatron-1d", *kOptimus = "optimus-2d", *kAxonn = "axonn-4d",
                       *kAutoddl = "autoddl";
  parallel.choice(
      "strategy", &Parallel::strategy, {kMegatron, kOptimus, kAxonn, kAutoddl, "auto"},
      "How a model is split over ranks: megatron-1d by columns or rows of its matrices, optimus-2d by both "
      "on a square mesh whose rows share out the sequences, axonn-4d in turns by both, and by sequences, "
      "autoddl as tables of tags say for each layer; auto: the fastest of all by hardware.profile, given keys kept.");
  parallel.integer("data", &Parallel::data, 0,
                   {.range = between(1, 1e6), .unit = "replicas", .derived = "ranks / those of one replica"},
                   "Replicas of the model, each with its own sequences.");
  parallel.integer("tensor", &Parallel::tensor, 1,
                   {.range = between(1, 65'536), .unit = "ranks", .belongs_to = kMegatron},
                   "megatron-1d: ranks that share one replica of the model.");
  parallel.boolean("sequence_parallel", &Parallel::sequence_parallel, true,
                   "megatron-1d: norms, dropout and the residual stream are split over the tensor ranks by token rows: "
                   "less memory, a quarter more bytes sent. false: every tensor rank holds all rows.",
                   {.belongs_to = kMegatron});
  parallel.integers(
      "mesh", &Parallel::mesh, {1, 1}, {.range = between(1, 4096), .belongs_to = kOptimus},
      "optimus-2d: [q, q] or [q, q, d], the ranks of a replica. Rows of the mesh split sequences, columns heads, the "
      "feed-forward layer and the features between; weights are split by both. d: such squares, with the same weights, "
      "that share out the sequences of a micro-batch (2.5D).");
  parallel.choice(
      "stationary", &Parallel::stationary, {"auto", "paper"},
      "optimus-2d: which matrix of a product stays where it is. auto: the largest one; paper: the result of "
      "every linear, which sends the wide input of the last one.",
      {.belongs_to = kOptimus});
  parallel.choice(
      "panels", &Parallel::panels, {"ring", "gather"},
      "optimus-2d: how blocks of a product's operands reach the ranks. ring: one after the other, each under "
      "the product of the one before, in the least memory; gather: all at once, for one large product: the "
      "faster way over slow links, with whole lines of blocks in memory.",
      {.belongs_to = kOptimus});
  parallel.integers("node_tile", &Parallel::node_tile, {1, 1}, {.range = between(1, 4096), .belongs_to = kOptimus},
                    "optimus-2d: [r, c], which must divide q: each r * c neighbouring ranks, those of a host, are so "
                    "many rows and columns of the mesh. [1, 1]: row after row.");
  parallel.integers(
      "grid", &Parallel::grid, {1, 1, 1}, {.range = between(1, 65'536), .belongs_to = kAxonn},
      "axonn-4d: [x, y, z], the ranks of a replica. x splits heads, the feed-forward layer and the "
      "vocabulary, y the residual stream's features, z sequences and, in pieces gathered for use, weights.");
  parallel.choice("order", &Parallel::order, {"yxzd", "xyzd", "yzxd", "zyxd", "xzyd", "zxyd"},
                  "axonn-4d: order of the axes over ranks, innermost (neighbouring ranks) first; d: replicas.",
                  {.belongs_to = kAxonn});
  parallel.boolean("overlap.all_reduce", &Parallel::overlap_all_reduce, true,
                   "axonn-4d: sums of activation gradients run under the product that makes a weight gradient. Changes "
                   "no bit, as the two below.",
                   {.belongs_to = kAxonn});
  parallel.boolean("overlap.reduce_scatter", &Parallel::overlap_reduce_scatter, true,
                   "axonn-4d: weight gradients go home over z under the products of the layers before.",
                   {.belongs_to = kAxonn});
  parallel.boolean("overlap.all_gather", &Parallel::overlap_all_gather, true,
                   "axonn-4d: the weights of the next linear are gathered over z under the product of this one.",
                   {.belongs_to = kAxonn});
  parallel.integer(
      "cache_layers", &Parallel::cache_layers, 0,
      {.range = between(0, 10'000), .unit = "layers", .belongs_to = "axonn-4d, autoddl"},
      "axonn-4d, autoddl: of the first layers, gathered weights are kept for a whole step instead of being gathered "
      "for each use.");
  parallel.choice("rs_dtype", &Parallel::rs_dtype, {"fp32", "bf16"},
                  "axonn-4d: type in which weight gradients of bf16 runs are summed over z. bf16: half the bytes, and "
                  "rounded in each sum.",
                  {.belongs_to = kAxonn});
  parallel.integers(
      "axes", &Parallel::axes, {1}, {.range = between(1, 65'536), .belongs_to = kAutoddl},
      "autoddl: extents of the axes of a replica, outermost first: one to six, which have a letter each in "
      "all tags below.");
  parallel.layers(
      "layer", &Parallel::layer, {.belongs_to = kAutoddl},
      "autoddl: tables [[parallel.layer]], in the order of the layers, each for `layers` of them (without it: "
      "all that are left). Tags say what each axis cuts. stream, attention and hidden (between up and down): "
      "r rows, c columns, - nothing; the linears qkv, out, up and down: r rows, c columns, k the "
      "contraction, f rows, with the matrix stored in flat pieces, - nothing. schedule: at_once, or ring: "
      "GEMMs step by step (SUMMA).");
  parallel.string("head", &Parallel::head, "", {.belongs_to = kAutoddl},
                  "autoddl: tags of the final norm and the head, as of stream; empty: those of the last layer.");
  parallel.string(
      "table", &Parallel::table, "", {.belongs_to = kAutoddl},
      "autoddl: tags of the table of embedding and head: v vocabulary, h features, f flat pieces, - copies; "
      "empty: f where head has r, h where it has c, else v.");
  parallel.integer("zero_stage", &Parallel::zero_stage, 0, {.range = between(0, 1)},
                   "1: split the optimizer state over the replicas.");
  parallel.choice(
      "transport", &Parallel::transport, {"auto", "nccl", "mpi", "threads"},
      "What carries tensors between ranks. auto: under mpirun NCCL between GPUs when every rank has one of its own, "
      "else mpi (from GPU to GPU through the host), else a single rank. nccl: under mpirun, or an error. mpi: always, "
      "so that ranks may share a GPU. threads: all ranks are threads of one process, without mpirun, for tests and "
      "debuggers.");
  parallel.integer("lanes", &Parallel::lanes, 0,
                   {.range = between(1, 3), .derived = "3, or 1 with NCCL, where more can deadlock"},
                   "Kinds of communication that may overtake each other: activations, weights, gradients; 1: none.");
  parallel.number(
      "timeout", &Parallel::timeout, 600, {.range = above(0), .unit = "s"},
      "A rank that keeps the others waiting for so long is lost: they name it and stop with exit status 7.");
}

void declare_offload(std::vector<Key>& keys) {
  Declare<Offload> offload(keys, "offload", &Config::offload);
  constexpr const char* kOffload = "offload";
  offload.choice(
      "optimizer", &Offload::optimizer, OffloadOptimizer::none, {"none", "cpu", "interleaved"},
      "Where master weights and moments are. none: in the memory of the device; else in the host's, and they "
      "are updated there (cpu), or partly on the device, which takes turns with them (interleaved). Changes "
      "no bit of a result.");
  offload.word("gpu_fraction", &Offload::gpu_fraction, "auto", {.belongs_to = kOffload},
               "interleaved: share of the subgroups that are brought to the device and back for their update: a "
               "fraction \"a/b\" or a number from 0 to 1; \"auto\": as the rates of the machine suggest.");
  offload.integer("subgroup", &Offload::subgroup, 100'000'000,
                  {.range = between(64, 1e12), .unit = "elements", .belongs_to = kOffload},
                  "What is updated in one piece, at most.");
  offload.integer("slots", &Offload::slots, 3, {.range = between(1, 64), .unit = "subgroups", .belongs_to = kOffload},
                  "interleaved: subgroups that have room on the device at a time; one waits for its way out and in.");
  offload.integer("resident", &Offload::resident, 0,
                  {.range = between(0, 1e6), .unit = "subgroups", .belongs_to = kOffload},
                  "interleaved: of the first subgroups, so many stay on the device.");
  offload.choice(
      "grad_transport", &Offload::grad_transport, GradTransport::fp32, {"fp32", "bf16"},
      "Type in which gradients go to the host. bf16 halves their bytes and rounds every gradient after the norm was "
      "taken, wherever it is used, with optimizer = \"none\" as well: results differ from those of fp32, and are the "
      "same for every plan.");
  offload.boolean("pinned", &Offload::pinned, true,
                  "Host memory beside a GPU is pinned, so that copies run at the speed of the link beside kernels. "
                  "Memory that the system refuses to pin stays pageable, and the log says so.",
                  {.belongs_to = kOffload});
}

}  // namespace trainer::config
