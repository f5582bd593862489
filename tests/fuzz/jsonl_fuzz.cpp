// JSON lines. The first byte: its lowest bit selects strict mode, the other bits the size of pieces. However the file
// is split into pieces, its documents are the same, or it is rejected.
#include "data/text.h"
#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;

namespace {

struct Found {
  bool refused = false;
  std::vector<std::string> documents;
  int64_t replaced = 0;
  bool operator==(const Found&) const = default;
};

Found read(const std::string& file, const data::TextOptions& options, int64_t piece_bytes) {
  Found found;
  found.refused = !fuzz::accepted({Code::data}, [&] {
    data::PieceReader reader({file}, options, piece_bytes);
    while (auto piece = reader.next()) {
      const data::TextFlaws count =
          data::split_documents(file, std::move(*piece), options, [&](std::string_view text, bool starts, bool ends) {
            TRAINER_CHECK(starts && ends, "a part of a document");
            found.documents.emplace_back(text);
          });
      found.replaced += count.replaced;
    }
  });
  if (found.refused) return {.refused = true};  // the position depends on the pieces
  return found;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  const std::string_view input = fuzz::text_of(data, size);
  const int flags = input.empty() ? 0 : static_cast<uint8_t>(input[0]);
  const std::string file = folder / "x.jsonl";
  tests::write(file, input.substr(std::min<size_t>(1, size)));
  const data::TextOptions options{.text_key = "text", .strict = (flags & 1) != 0};
  const int64_t all = static_cast<int64_t>(size) + 1;  // not data::kPieceBytes, which would be slow to allocate
  const Found whole = read(file, options, all), cut = read(file, options, 1 + flags / 2);
  TRAINER_CHECK(whole == cut, "{} documents in one piece, {} in pieces of {} bytes", whole.documents.size(),
                cut.documents.size(), 1 + flags / 2);
  return 0;
}
