// Fused attention with cuDNN 9, through its header-only front end. The library is loaded on first use, so that the
// program also starts without it.
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "ops/cuda/fused_attention.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the front end looks up cuDNN's functions in it
}

namespace trainer::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Attributes = fe::graph::Tensor_attributes;

enum Operand : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Plan {
  std::unique_ptr<Graph> graph;  // null: cuDNN has no kernel for the shape
  int64_t workspace = 0;
};

/// Guards the front end's global state: its handle of the library, and the variable below.
std::mutex& front_end() {
  static std::mutex mutex;
  return mutex;
}

/// The oldest cuDNN whose deterministic backward pass on Hopper can do without a workspace of batch·heads·length².
constexpr int64_t kLinearVersion = 92500;
/// The oldest cuDNN with bottom-right masks for other numbers of keys than of queries.
constexpr int64_t kBottomRightVersion = 90600;
/// Selects the linear algorithm for the graph that is built meanwhile. The front end takes this choice from the
/// environment only: a limit for the other algorithm's workspace.
class LinearOnly {
 public:
  LinearOnly() {
    if (const char* given = std::getenv(kName)) given_ = given;
    setenv(kName, "0", 1);
  }
  ~LinearOnly() { given_ ? setenv(kName, given_->c_str(), 1) : unsetenv(kName); }
  LinearOnly(const LinearOnly&) = delete;
  LinearOnly& operator=(const LinearOnly&) = delete;

 private:
  static constexpr const char* kName = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  std::optional<std::string> given_;  // by the user
};

class Cudnn final : public FusedAttention {
 public:
  Cudnn(const device::cuda::Facts& gpu, bool deterministic)
      : FusedAttention(most_workspace_on(gpu)), ordinal_(gpu.ordinal), deterministic_(deterministic) {
    device::cuda::check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS)
      throw Error(Code::usage, "cuDNN was found, but cannot be initialised on this GPU");
  }
  ~Cudnn() override { fe::detail::destroy_handle(handle_); }

  std::string name() const override {
    return format("cuDNN {}.{}.{}", version() / 10000, version() / 100 % 100, version() % 100);
  }

  std::optional<int64_t> workspace(const FusedShape& shape) override {
    const Plan& plan = plan_of(shape);
    return plan.graph ? std::optional(plan.workspace) : std::nullopt;
  }
  using FusedAttention::run;

  void run(cudaStream_t stream, const FusedShape& shape, const FusedOperands& o, void* workspace) override {
    const Plan& plan = plan_of(shape);
    TRAINER_CHECK(plan.graph, "cuDNN supports this attention");
    std::unordered_map<int64_t, void*> operands{{kQ, o.q}, {kK, o.k}, {kV, o.v}, {kOut, o.out}};
    if (shape.backward || shape.keeps_lse) operands.emplace(kLse, o.lse);
    if (shape.backward) operands.insert({{kDout, o.dout}, {kDq, o.dq}, {kDk, o.dk}, {kDv, o.dv}});
    if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS)
      throw Error(Code::device, "cuDNN rejected the CUDA stream");
    if (auto status = plan.graph->execute(handle_, operands, workspace); status.is_bad())
      throw Error(Code::device, format("attention with {}: {}", name(), status.get_message()));
  }

 private:
  static int64_t version() { return static_cast<int64_t>(fe::detail::get_backend_version()); }
  const Plan& plan_of(const FusedShape& shape) {
    auto it = plans_.find(shape);
    if (it == plans_.end()) it = plans_.emplace(shape, built(shape)).first;
    return it->second;
  }

  Plan built(const FusedShape& shape) const {
    if (shape.linear && (!deterministic_ || version() < kLinearVersion)) return {};
    if (shape.mask == FusedMask::bottom_right && version() < kBottomRightVersion) return {};
    device::cuda::check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    const std::lock_guard lock(front_end());
    std::optional<LinearOnly> limit;
    if (shape.linear) limit.emplace();
    Plan plan{described(shape), 0};
    if (plan.graph->build(handle_, {fe::HeurMode_t::A}).is_bad() ||
        plan.graph->get_workspace_size(plan.workspace).is_bad())
      return {};
    return plan;
  }

  /// Sets the keys that queries see, and the scale of the scores.
  static auto with_mask(auto attributes, const FusedShape& s) {
    if (s.mask == FusedMask::causal) attributes.set_causal_mask(true);
    if (s.mask == FusedMask::bottom_right) attributes.set_causal_mask_bottom_right(true);
    return attributes.set_attn_scale(s.scale);
  }

  /// Builds the graph of the pass: [batch, heads, length or keys, head_dim] with the strides of our rows.
  std::unique_ptr<Graph> described(const FusedShape& s) const {
    auto graph = std::make_unique<Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto rows = [&](Attributes& tensor, Operand which, size_t place) -> Attributes& {
      const bool of_keys = which == kK || which == kV || which == kDk || which == kDv;
      const int64_t distance = s.row_distance[place];
      return tensor.set_uid(which)
          .set_dim({s.batch, of_keys ? s.kv_heads : s.heads, of_keys ? s.keys : s.length, s.head_dim})
          .set_stride({(of_keys ? s.key_rows : s.length) * distance, s.head_dim, distance, 1});
    };
    const auto statistics = [&](Attributes& tensor) -> Attributes& {
      return tensor.set_uid(kLse)
          .set_data_type(fe::DataType_t::FLOAT)
          .set_dim({s.batch, s.heads, s.length, 1})
          .set_stride({s.heads * s.length, s.length, 1, 1});
    };
    const auto input = [&](Operand which, size_t place) {
      Attributes tensor;
      return graph->tensor(rows(tensor, which, place));
    };
    const auto q = input(kQ, 0), k = input(kK, 1), v = input(kV, 2);
    if (!s.backward) {
      const auto [out, lse] = graph->sdpa(
          q, k, v, with_mask(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(s.keeps_lse), s));
      rows(out->set_output(true), kOut, 3);
      if (s.keeps_lse) statistics(lse->set_output(true));
      return graph;
    }
    const auto out = input(kOut, 3), dout = input(kDout, 4);
    Attributes kept;
    const auto lse = graph->tensor(statistics(kept));
    const auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dout, lse,
                                                   with_mask(fe::graph::SDPA_backward_attributes()
                                                                 .set_name("attention backward")
                                                                 .set_deterministic_algorithm(deterministic_),
                                                             s));
    rows(dq->set_output(true), kDq, 5);
    rows(dk->set_output(true), kDk, 6);
    rows(dv->set_output(true), kDv, 7);
    return graph;
  }

  int ordinal_;
  bool deterministic_;
  cudnnHandle_t handle_ = nullptr;
  std::map<FusedShape, Plan> plans_;
};

static_assert(CUDNN_MAJOR >= 9);

}  // namespace

std::unique_ptr<FusedAttention> load_cudnn(const device::cuda::Facts& gpu, bool deterministic) {
  const std::lock_guard lock(front_end());
  if (fe::cudnn_dlhandle == nullptr) {
    const std::string name = format("libcudnn.so.{}", CUDNN_MAJOR);
    fe::cudnn_dlhandle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle == nullptr)
      throw Error(Code::usage, format("{} not found; add its folder to LD_LIBRARY_PATH", name));
  }
  try {
    return std::make_unique<Cudnn>(gpu, deterministic);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // from the front end, for libraries that it requires
    throw Error(Code::usage, format("cuDNN cannot be used: {}", error.what()));
  }
}

}  // namespace trainer::ops::cuda
