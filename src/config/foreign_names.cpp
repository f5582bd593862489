#include "config/foreign_names.h"

namespace trainer::config {

const std::map<std::string, std::string, std::less<>>& foreign_names() {
  static const std::map<std::string, std::string, std::less<>> names = {
      {"learning_rate", "optim.lr"},
      {"max_lr", "optim.lr"},
      {"warmup_iters", "optim.warmup_steps"},
      {"warmup", "optim.warmup_steps"},
      {"clip_grad", "optim.grad_clip"},
      {"gradient_clipping", "optim.grad_clip"},
      {"max_grad_norm", "optim.grad_clip"},
      {"max_norm", "optim.grad_clip"},
      {"adam_beta1", "optim.beta1"},
      {"adam_beta2", "optim.beta2"},
      {"lr_decay_style", "optim.schedule"},
      {"lr_scheduler_type", "optim.schedule"},
      {"max_steps", "train.steps"},
      {"max_iters", "train.steps"},
      {"train_iters", "train.steps"},
      {"num_iterations", "train.steps"},
      {"batch_size", "train.micro_batch"},
      {"micro_batch_size", "train.micro_batch"},
      {"local_batch_size", "train.micro_batch"},
      {"per_device_train_batch_size", "train.micro_batch"},
      {"global_batch_size", "train.global_batch"},
      {"activation_checkpointing", "train.recompute"},
      {"gradient_checkpointing", "train.recompute"},
      {"recompute_granularity", "train.recompute"},
      {"block_size", "model.seq_len"},
      {"context_length", "model.seq_len"},
      {"seq_length", "model.seq_len"},
      {"n_embd", "model.d_model"},
      {"hidden_size", "model.d_model"},
      {"dim", "model.d_model"},
      {"intermediate_size", "model.d_ff"},
      {"ffn_hidden_size", "model.d_ff"},
      {"num_layers", "model.n_layer"},
      {"num_hidden_layers", "model.n_layer"},
      {"num_attention_heads", "model.n_head"},
      {"num_key_value_heads", "model.n_kv_head"},
      {"n_kv_heads", "model.n_kv_head"},
      {"num_local_experts", "model.n_expert"},
      {"num_experts", "model.n_expert"},
      {"moe_num_experts", "model.n_expert"},
      {"num_experts_per_tok", "model.experts_per_token"},
      {"moe_router_topk", "model.experts_per_token"},
      {"moe_top_k", "model.experts_per_token"},
      {"moe_intermediate_size", "model.d_expert"},
      {"moe_ffn_hidden_size", "model.d_expert"},
      {"moe_z_loss_coeff", "train.router_z_loss"},
      {"hidden_act", "model.activation"},
      {"hidden_activation", "model.activation"},
      {"use_parallel_residual", "model.parallel_residual"},
      {"gpt-j-residual", "model.parallel_residual"},
      {"sliding_window", "model.window"},
      {"query_pre_attn_scalar", "model.attn_scalar"},
      {"sliding_window_pattern", "model.window_full_every"},
      {"rope_local_base_freq", "model.window_rope_theta"},
      {"final_logit_softcapping", "model.logit_softcap"},
      {"z_loss_weight", "train.z_loss"},
      {"no_rope_layer_interval", "model.nope_every"},
      {"rope_scaling", "model.rope_type"},
      {"rotary_pct", "model.rotary_dim"},
      {"rotary-pct", "model.rotary_dim"},
      {"partial_rotary_factor", "model.rotary_dim"},
      {"rope_scaling_type", "model.rope_type"},
      {"dtype", "precision.compute"},
      {"mixed_precision", "precision.compute"},
      {"bf16", "precision.compute"},
      {"out_dir", "run.dir"},
      {"save_interval", "checkpoint.interval"},
      {"save_steps", "checkpoint.interval"},
      {"tensor_model_parallel_size", "parallel.tensor"},
      {"tensor_parallel_size", "parallel.tensor"},
      {"tensor_parallel_degree", "parallel.tensor"},
      {"tp", "parallel.tensor"},
      {"dp", "parallel.data"},
      {"pp", "parallel.stages"},
      {"pipeline_parallel_degree", "parallel.stages"},
      {"pipeline_parallel_size", "parallel.stages"},
      {"pipeline_parallel_schedule", "parallel.pipeline_schedule"},
      {"pipeline_model_parallel_size", "parallel.stages"},
      {"ep", "parallel.experts"},
      {"expert_parallel", "parallel.experts"},
      {"expert_parallel_degree", "parallel.experts"},
      {"expert_model_parallel_size", "parallel.experts"},
      {"use_distributed_optimizer", "parallel.zero_stage"},
  };
  return names;
}

namespace {
constexpr const char *
    kFsdp = "FSDP (ZeRO-3) is parallel.strategy = \"fsdp\"; parallel.shards = N shards over N ranks",
   *kHsdp =
       "HSDP is parallel.strategy = \"fsdp\" with parallel.shards = N and parallel.data = D, the "
       "number of replicas",
   *kInterleaved =
       "set parallel.chunks, the number of chunks per stage: layers / (stages x layers per virtual "
       "stage)",
   *kContext =
       "context parallelism is parallel.context = N, the ranks that share a sequence; parallel.context_kv = \"gather\" "
       "or \"ring\"; fsdp: parallel.context_heads = U of them exchange heads (Ulysses)",
   *kCapacity = "there is no capacity: tokens are never dropped; parallel.expert_buffer bounds memory; delete it";
}  // namespace

const std::map<std::string, std::string, std::less<>>& foreign_hints() {
  static const std::string accumulation =
      "set train.global_batch, which is train.micro_batch x accumulation x data-parallel replicas";
  static const std::string length = "set train.steps or train.tokens, the length of the run";
  static const std::string ranks = "start N ranks with `mpirun -np N`";
  static const std::map<std::string, std::string, std::less<>> hints = {
      {"accumulation", accumulation},
      {"grad_accum", accumulation},
      {"gradient_accumulation", accumulation},
      {"gradient_accumulation_steps", accumulation},
      {"recompute_num_layers",
       "train.recompute_layers is the number of layers with recompute_method = block; for uniform, set "
       "train.recompute = \"full\""},
      {"epochs", length},
      {"num_train_epochs", length},
      {"fsdp", kFsdp},
      {"fsdp_size", kFsdp},
      {"fully_sharded", kFsdp},
      {"dp_shard", kFsdp},
      {"data_parallel_shard_degree", kFsdp},
      {"sharding_strategy", kFsdp},
      {"zero3", kFsdp},
      {"zero_optimization", std::string("ZeRO-1 is parallel.zero_stage = 1; ") + kFsdp},
      {"hsdp", kHsdp},
      {"dp_replicate", kHsdp},
      {"data_parallel_replicate_degree", kHsdp},
      {"num_layers_per_virtual_pipeline_stage", kInterleaved},
      {"cp", kContext},
      {"cp_comm_type",
       "set parallel.context_kv: all_gather is \"gather\", p2p is \"ring\"; a2a is parallel.context_heads = "
       "parallel.context"},
      {"ring_degree", kContext},
      {"context_parallel_degree", kContext},
      {"context_parallel_size", kContext},
      {"ring_attention", kContext},
      {"ulysses_degree", kContext},
      {"sequence_parallel_size", kContext},
      {"capacity_factor", kCapacity},
      {"moe_expert_capacity_factor", kCapacity},
      {"router_aux_loss_coef", "set train.balance_loss to this coefficient times model.experts_per_token"},
      {"moe_aux_loss_coeff", "set train.balance_loss to this coefficient times the number of layers with experts"},
      {"world_size", ranks},
      {"nproc_per_node", ranks},
      {"wandb", "set log.tensorboard = true; Weights & Biases reads its event files"},
  };
  return hints;
}

const std::map<std::string, std::string, std::less<>>& foreign_values() {
  static const std::map<std::string, std::string, std::less<>> values = {
      {"parallel.strategy",
       std::string("data parallelism is \"megatron-1d\", the default, without parallel.tensor; ") + kFsdp},
      {"parallel.zero_stage", kFsdp},
  };
  return values;
}

}  // namespace trainer::config
