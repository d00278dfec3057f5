// SPDX-License-Identifier: Apache-2.0
#include "install/tuned.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/kept.hpp"
#include "install/tested_here.hpp"
#include "kiln/error.hpp"
#include "probe/hardware.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTunedSchema = "kiln.tuned/1";
constexpr Kept kTables{"tuned", "tuned table", "kiln tune"};

std::string file_name(const std::string& package, int version, const std::string& variant,
                      const std::string& hardware) {
  return label(package, version) + "." + variant + "." + place_word(hardware) + ".json";
}

std::string file_name(const TunedTable& table) {
  return file_name(table.package, table.version, table.variant, table.hardware);
}

double microseconds(const JsonView& view) {
  if (!view.json().is_number()) view.fail("is no number");
  return view.json().get<double>();
}

/// An extent or a time would be no JSON integer of others' reach: 2^53 is more than any tensor has.
std::int64_t extent(const JsonView& view) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 53;
  const std::uint64_t value = view.unsigned_integer();
  if (value > kMost) view.fail("is more than an extent can be");
  return static_cast<std::int64_t>(value);
}

TunedRow parse_row(const JsonView& view) {
  view.expect_members({"dtype", "with", "extents", "choice", "own_us", "best_us"});
  TunedRow row{.dtype = view.at("dtype").string(),
               .with = view.at("with").strings(),
               .extents = {},
               .choice = view.at("choice").string(),
               .own_us = microseconds(view.at("own_us")),
               .best_us = microseconds(view.at("best_us"))};
  for (const auto& [symbol, range] : view.at("extents").members()) {
    const std::vector<JsonView> ends = range.items();
    if (ends.size() != 2) range.fail("is not two numbers, from and to");
    const TunedRow::Range read{extent(ends[0]), extent(ends[1])};
    if (read.to < read.from) range.fail("ends before it begins");
    row.extents.emplace(symbol, read);
  }
  return row;
}

TunedOp parse_op(const JsonView& view) {
  view.expect_members({"op", "attribute", "any", "rows"});
  TunedOp op{.name = view.at("op").string(),
             .attribute = view.at("attribute").string(),
             .any = view.at("any").strings(),
             .rows = {}};
  for (const JsonView& row : view.at("rows").items()) op.rows.push_back(parse_row(row));
  return op;
}

TunedTable parse_table(const Json& document, const fs::path& file) {
  const JsonView view(document, file.string());
  view.expect_members(
      {"schema", "package", "version", "variant", "manifest", "hardware", "driver", "date", "ops"});
  if (view.at("schema").string() != kTunedSchema) {
    view.at("schema").fail("is " + quote(view.at("schema").string()) + ", expected " +
                           quote(kTunedSchema));
  }
  TunedTable table{.package = view.at("package").string(),
                   .version = view.at("version").version_number(),
                   .variant = view.at("variant").string(),
                   .manifest = Digest::parse(view.at("manifest").string()),
                   .hardware = view.at("hardware").string(),
                   .driver = view.at("driver").string(),
                   .date = view.at("date").string(),
                   .ops = {}};
  for (const JsonView& op : view.at("ops").items()) table.ops.push_back(parse_op(op));
  if (file_name(table) != file.filename()) {
    view.fail("it speaks of " + label(table.package, table.version) + " " + table.variant + " on " +
              quote(table.hardware) + ", for which its name would be " + file_name(table));
  }
  return table;
}

Json to_json(const TunedTable& table) {
  Json ops = Json::array();
  for (const TunedOp& op : table.ops) {
    Json rows = Json::array();
    for (const TunedRow& row : op.rows) rows.push_back(to_json(row));
    ops.push_back(
        {{"op", op.name}, {"attribute", op.attribute}, {"any", op.any}, {"rows", std::move(rows)}});
  }
  return {{"schema", kTunedSchema},
          {"package", table.package},
          {"version", table.version},
          {"variant", table.variant},
          {"manifest", table.manifest.str()},
          {"hardware", table.hardware},
          {"driver", table.driver},
          {"date", table.date},
          {"ops", std::move(ops)}};
}

/// No rows yet.
TunedTable new_table(const Resolution& resolution, const Variant& variant) {
  TestRecord today = record_of_today(resolution.host, resolution.device);
  return {.package = resolution.name,
          .version = resolution.version,
          .variant = variant.id,
          .manifest = variant.manifest.digest,
          .hardware = std::move(today.hardware),
          .driver = std::move(today.driver),
          .date = std::move(today.date),
          .ops = {}};
}

}  // namespace

std::size_t TunedTable::rows() const {
  std::size_t count = 0;
  for (const TunedOp& op : ops) count += op.rows.size();
  return count;
}

std::size_t TunedTable::choices() const {
  std::size_t count = 0;
  for (const TunedOp& op : ops) {
    for (const TunedRow& row : op.rows) count += row.choice.empty() ? 0 : 1;
  }
  return count;
}

Json to_json(const TunedRow& row) {
  Json extents = Json::object();
  for (const auto& [symbol, range] : row.extents) {
    extents[symbol] = Json::array({range.from, range.to});
  }
  return {{"dtype", row.dtype},   {"with", row.with},     {"extents", std::move(extents)},
          {"choice", row.choice}, {"own_us", row.own_us}, {"best_us", row.best_us}};
}

fs::path tuned_path(const Resolution& resolution, const Variant& variant) {
  fs::path folder = folder_of(kTables);
  if (folder.empty()) return folder;
  return folder / file_name(resolution.name, resolution.version, variant.id,
                            hardware_name(resolution.host, resolution.device));
}

Tuned read_tuned(const Resolution& resolution, const Variant& variant) {
  const fs::path folder = folder_of(kTables);
  // Most machines have no table; then nobody asks what the CPU is called, which a table's name has.
  std::error_code unknown;
  if (folder.empty() || (!fs::exists(folder, unknown) && !unknown)) return {};
  Tuned tuned{.file = tuned_path(resolution, variant), .table = std::nullopt, .text = ""};
  const std::optional<Json> document = read_kept(kTables, tuned.file);
  if (!document) return tuned;
  TunedTable table;
  try {
    table = parse_table(*document, tuned.file);
  } catch (const Error& error) {
    fail_tuned(error.what());
  }
  if (table.manifest != variant.manifest.digest) {
    tuned.text = tuned.file.string() +
                 " was measured with another build and is passed over; 'kiln "
                 "tune " +
                 label(table.package, table.version) + "' measures this one";
    return tuned;
  }
  tuned.text = std::to_string(table.choices()) + " of " + std::to_string(table.rows()) +
               " measured shapes take another kernel, by " + tuned.file.string() + " of " +
               table.date;
  tuned.table = std::move(table);
  return tuned;
}

void fail_tuned(const std::string& found) {
  fail_kept(kTables, found);
}

Tuned update_tuned(const Resolution& resolution, const Variant& variant,
                   const TunedUpdate& update) {
  TunedTable table = new_table(resolution, variant);
  const std::string name = file_name(table);
  const std::vector<FileLock> alone = lock_folders_of({place_of(kTables, name)}, update.waiting);
  Tuned tuned = read_tuned(resolution, variant);
  if (tuned.table) table.ops = std::move(tuned.table->ops);
  update.change(table);
  keep(kTables, name, to_json(table));
  tuned.table = std::move(table);
  return tuned;
}

void check_tuned_place(const Resolution& resolution, const Variant& variant) {
  check_writable(kTables, file_name(new_table(resolution, variant)));
}

}  // namespace kiln
