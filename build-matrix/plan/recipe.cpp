// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/recipe.hpp"

#include "base/digest.hpp"
#include "documents/facts.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

// 128 bits: enough to tell any two builds apart, short enough to read out.
constexpr std::size_t kBuildIdDigits = 32;

std::string source_lines(const Ingredients& ingredients) {
  std::string text;
  for (const auto& [name, hash] : ingredients.sources) {
    text.append(name).append(" ").append(hash).append("\n");
  }
  return text;
}

std::string make_build_id(const VariantPlan& plan, Version glibc, const Ingredients& ingredients) {
  std::string text = "kiln.build/1\nvariant " + plan.id + "\nglibc " + to_string(glibc) + "\n";
  const auto& [compiler, version] = ingredients.device_compiler;
  text += "zig " + ingredients.zig + "\n" + (compiler.empty() ? "nvrtc" : compiler) + " " +
          version + "\n";
  for (const std::string& flag : ingredients.host_flags) text += "host " + flag + "\n";
  for (const std::string& option : ingredients.device_options) text += "device " + option + "\n";
  for (const ImagePlan& image : plan.images) {
    text += "image " + image.stem + " " + to_string(image.code) + "\n";
  }
  return Digest::of(text + source_lines(ingredients)).hex().substr(0, kBuildIdDigits);
}

}  // namespace

std::string Recipe::library() const {
  return "lib" + underscored(package) + ".so";
}

std::string Recipe::subject() const {
  return package + " " + variant;
}

Json to_json(const Recipe& recipe) {
  Json images = Json::array();
  for (const Recipe::Image& image : recipe.images) {
    images.push_back({{"stem", image.stem}, {"code", to_string(image.code)}});
  }
  Json targets = Json::array();
  for (const DeviceCode& target : recipe.targets) targets.push_back(to_string(target));
  Json json = {{"package", recipe.package},         {"version", recipe.version},
               {"min_loader", recipe.min_loader},   {"variant", recipe.variant},
               {"cpu", to_string(recipe.cpu)},      {"glibc", to_string(recipe.glibc)},
               {"images", std::move(images)},       {"libraries", recipe.libraries},
               {"targets", std::move(targets)},     {"build_id", recipe.build_id},
               {"build", Json::parse(recipe.build)}};
  if (recipe.toolkit) json["toolkit"] = to_string(*recipe.toolkit);
  if (recipe.min_driver) json["min_driver"] = to_string(*recipe.min_driver);
  return json;
}

Recipe parse_recipe(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  const JsonView view(json, subject);
  Recipe recipe{.package = view.at("package").string(),
                .version = static_cast<int>(view.at("version").unsigned_integer()),
                .min_loader = view.at("min_loader").string(),
                .variant = view.at("variant").string(),
                .cpu = parse_cpu_fact(view.at("cpu")),
                .glibc = parse_version_fact(view.at("glibc")),
                .libraries = view.at("libraries").strings(),
                .build_id = view.at("build_id").string(),
                .build = dump_json(view.at("build").json())};
  for (const JsonView& image : view.at("images").items()) {
    recipe.images.push_back({image.at("stem").string(),
                             parse_fact(image.at("code"), parse_device_code, "device code")});
  }
  if (view.has("toolkit")) recipe.toolkit = parse_version_fact(view.at("toolkit"));
  if (view.has("min_driver")) recipe.min_driver = parse_version_fact(view.at("min_driver"));
  for (const JsonView& target : view.at("targets").items()) {
    recipe.targets.push_back(parse_fact(target, parse_device_code, "a target"));
  }
  return recipe;
}

Recipe make_recipe(const Package& package, const VariantPlan& plan, Version glibc,
                   const Ingredients& ingredients) {
  Recipe recipe{.package = package.name,
                .version = package.version,
                .min_loader = package.min_loader,
                .variant = plan.id,
                .cpu = plan.cpu,
                .glibc = glibc,
                .toolkit = plan.toolkit,
                .min_driver = plan.min_driver,
                .targets = plan.device_code(),
                .libraries = plan.libraries,
                .build_id = make_build_id(plan, glibc, ingredients)};
  for (const ImagePlan& image : plan.images) recipe.images.push_back({image.stem, image.code});
  Json build = {{"zig", ingredients.zig}, {"source", Digest::of(source_lines(ingredients)).str()}};
  const auto& [compiler, version] = ingredients.device_compiler;
  if (!compiler.empty()) build[compiler] = version;
  for (const auto& [name, pinned] : ingredients.headers) build[name] = pinned;
  recipe.build = dump_json(build);
  return recipe;
}

}  // namespace kiln::build
