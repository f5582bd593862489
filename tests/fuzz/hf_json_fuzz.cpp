// The JSON files of a Hugging Face model: config.json and the index of its weights.
#include "fuzz.h"
#include "huggingface/index.h"
#include "huggingface/model_config.h"
#include "huggingface/tensor_map.h"

using namespace trainer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  huggingface::ModelConfig model;
  if (fuzz::accepted({Code::checkpoint}, [&] { model = huggingface::parse_config_json(text, "config.json"); })) {
    const auto tensors = huggingface::tensor_map(model.config.model, model.vocab);
    for (const huggingface::MappedTensor& tensor : tensors)
      TRAINER_CHECK(tensor.shape.count() > 0, "{} has no elements", tensor.name);
    const std::string again =
        huggingface::to_config_json(model.config.model, model.vocab, std::nullopt, huggingface::FloatType::f32);
    const huggingface::ModelConfig twice = huggingface::parse_config_json(again, "config.json");
    TRAINER_CHECK(huggingface::to_config_json(twice.config.model, twice.vocab, std::nullopt,
                                              huggingface::FloatType::f32) == again,
                  "read back otherwise: {}", again);
  }
  fuzz::accepted({Code::checkpoint}, [&] {
    for (const auto& [tensor, file] : huggingface::parse_index_json(text, "index.json"))
      TRAINER_CHECK(file.find('/') == file.npos, "{} in {}", tensor, file);
  });
  return 0;
}
