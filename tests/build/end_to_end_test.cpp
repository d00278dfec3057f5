// SPDX-License-Identifier: Apache-2.0
//
// The whole build, on the small package of fixtures/: kiln-build is run as a user runs it. Needs
// the compilers of ci/toolchains; without them the program says so and ends with 77, CTest's
// "skipped".
#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <kiln/abi.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "end_to_end_paths.hpp"
#include "probe/processor.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path toolchains() {
  const char* prefix = std::getenv("KILN_TOOLCHAINS");
  return prefix != nullptr ? fs::path(prefix) : fs::path(paths::kToolchains);
}

// A copy of the package to change, and an output folder; kept between the cases, because the first
// build of a target also builds zig's start-up objects for it.
class Workshop {
 public:
  Workshop() {
    std::string name = (fs::temp_directory_path() / "kiln-build-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    fs::create_directories(packages());
    fs::copy(fs::path(paths::kFixtures) / "scale", package(), fs::copy_options::recursive);
  }
  ~Workshop() { fs::remove_all(root_); }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  fs::path packages() const { return root_ / "packages with blanks"; }
  fs::path package() const { return packages() / "scale"; }
  fs::path out() const { return root_ / "out"; }
  fs::path variant(const std::string& id) const { return out() / "scale" / id; }

  Finished run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {paths::kBuildProgram, "--toolchains", toolchains().string(), "--packages",
                      packages().string(), "--out", out().string()});
    return run_captured(arguments);
  }
  void must(const std::vector<std::string>& arguments) const {
    const Finished finished = run(arguments);
    REQUIRE_MESSAGE(finished.status == 0, finished.output);
  }
  Config config(const std::string& id) const {
    return parse_config(read_file(variant(id) / "config.json"), "config");
  }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_file(package() / file);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write_file(package() / file, text.replace(at, from.size(), to));
  }

 private:
  fs::path root_;
};

const Workshop& workshop() {
  static const Workshop one;
  return one;
}

TEST_CASE("build: a CPU variant is built, and its library computes") {
  workshop().must({"scale", "--only", "cpu-x86-64-v3"});
  const fs::path folder = workshop().variant("cpu-x86-64-v3");
  const Config config = workshop().config("cpu-x86-64-v3");
  CHECK(config.name == "scale");
  CHECK(config.version == 3);
  CHECK(Json::parse(config.build).at("zig") == "0.15.2");
  CHECK(config.needs.glibc <= Version{2, 17});
  CHECK(config.needs.is_cpu());

  void* library = dlopen((folder / "libscale.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  const auto entry = reinterpret_cast<kiln_package_fn>(dlsym(library, KILN_PACKAGE_SYMBOL));
  REQUIRE((entry != nullptr));
  const kiln_package* package = entry();
  CHECK(package->build_id == config.build_id);
  CHECK(package->version == 3);
  float x[3] = {1, -2, 3.5F};
  float y[3] = {-1, -1, -1};
  int64_t shape = 3;
  DLTensor in{};
  in.data = x;
  in.device = {kDLCPU, 0};
  in.ndim = 1;
  in.dtype = {kDLFloat, 32, 1};
  in.shape = &shape;
  DLTensor out = in;
  out.data = y;
  const DLTensor* tensors[] = {&in, &out};
  kiln_attribute factor{};
  factor.kind = KILN_ATTRIBUTE_FLOAT;
  factor.value.as_float = 4;
  kiln_call call{};
  call.struct_size = sizeof(call);
  call.tensor_count = 2;
  call.tensors = tensors;
  call.attribute_count = 1;
  call.attributes = &factor;
  kiln_error error{};
  CHECK_MESSAGE(package->ops[0].run(&call, &error) == KILN_OK, error.text);
  CHECK(y[0] == 4.0F);
  CHECK(y[1] == -8.0F);
  CHECK(y[2] == 14.0F);
  dlclose(library);
}

TEST_CASE("build: both CPU architectures carry the same machine code") {
  workshop().must({"scale", "--only", "cu12.9-sm_90a-*,cu11.8-compute_80-*"});
  const Config x86 = workshop().config("cu12.9-sm_90a-x86_64");
  CHECK(Json::parse(x86.build).at("nvrtc").get<std::string>().starts_with("12.9."));
  CHECK(x86.needs.libraries == std::vector<std::string>{"libnvJitLink.so.12", "libnvrtc.so.12"});
  CHECK(workshop().config("cu11.8-compute_80-x86_64").needs.libraries ==
        std::vector<std::string>{"libnvrtc.so.12"});
  CHECK(workshop().config("cu12.9-sm_90a-aarch64").needs.cpu.arch == Arch::kAarch64);
  CHECK(to_string(workshop().config("cu11.8-compute_80-x86_64").needs.device_code.at(0)) ==
        "compute_80");
  const std::string image =
      read_file(workshop().out() / ".work/scale/device/cu12.9-sm_90a/csrc+smxx_scale.cubin");
  for (const char* id : {"cu12.9-sm_90a-x86_64", "cu12.9-sm_90a-aarch64"}) {
    CHECK(read_file(workshop().variant(id) / "libscale.so").find(image) != std::string::npos);
  }
  CHECK(read_file(workshop().variant("cu12.9-sm_90a-x86_64") / "ptxas.txt").find("registers") !=
        std::string::npos);
}

TEST_CASE("build: what is packed is what the manifest names") {
  const fs::path folder = workshop().variant("cu12.9-sm_90a-x86_64");
  workshop().must({"scale", "--only", "cu12.9-sm_90a-x86_64"});
  const VariantManifest manifest = parse_manifest(read_file(folder / "manifest.json"), "manifest");
  CHECK(manifest.layer.digest == Digest::of(read_file(folder / "layer.tar.zst")));
  CHECK(manifest.config.digest == Digest::of(read_file(folder / "config.json")));
}

TEST_CASE("build: a second build does nothing, in under two seconds of CPU") {
  const std::vector<std::string> words = {"scale", "--only",
                                          "cpu-x86-64-v3,cu12.9-*,cu11.8-compute_80-*"};
  workshop().must(words);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const Finished again = workshop().run(words);
    CHECK(again.output.find(" steps are up to date") != std::string::npos);
    least = std::min(least, again.cpu_seconds);  // what else the machine does counts for nothing
  }
  CHECK(least < KILN_MOST_IDLE_SECONDS);
}

TEST_CASE("build: a changed header of device code changes the variants that read it, no others") {
  workshop().must({"scale", "--only", "cu12.9-sm_90a-x86_64,cpu-x86-64-v3"});
  const std::string gpu = workshop().config("cu12.9-sm_90a-x86_64").build_id;
  const std::string cpu = workshop().config("cpu-x86-64-v3").build_id;
  workshop().replace("csrc/block.cuh", "256", "128");
  workshop().must({"scale", "--only", "cu12.9-sm_90a-x86_64,cpu-x86-64-v3"});
  CHECK(workshop().config("cu12.9-sm_90a-x86_64").build_id != gpu);
  CHECK(workshop().config("cpu-x86-64-v3").build_id == cpu);
  workshop().replace("csrc/block.cuh", "128", "256");
  workshop().must({"scale", "--only", "cu12.9-sm_90a-x86_64,cpu-x86-64-v3"});
  CHECK(workshop().config("cu12.9-sm_90a-x86_64").build_id == gpu);
}

TEST_CASE("build: a source with the time and the size of the one before is another source") {
  // cp -p into the same file: the compiler's own cache must not take it for the old one either.
  const std::vector<std::string> words = {"scale", "--only", "cpu-x86-64-v3,cu12.9-sm_90a-x86_64"};
  const auto libraries = [] {
    return read_file(workshop().variant("cpu-x86-64-v3") / "libscale.so") +
           read_file(workshop().variant("cu12.9-sm_90a-x86_64") / "libscale.so");
  };
  const auto change = [](const std::string& file, const std::string& from, const std::string& to) {
    const fs::path path = workshop().package() / file;
    const fs::file_time_type time = fs::last_write_time(path);
    std::string text = read_file(path);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary | std::ios::in) << text;  // the same inode
    fs::last_write_time(path, time);
  };
  workshop().must(words);
  const std::string before = libraries();
  change("csrc/cpu_package.cpp", "factor) *", "factor) +");
  change("csrc/smxx_scale.cu", "factor *", "factor +");
  workshop().must(words);
  const std::string incremental = libraries();
  fs::remove_all(workshop().out() / ".work/scale");
  workshop().must(words);
  CHECK(libraries() == incremental);
  change("csrc/cpu_package.cpp", "factor) +", "factor) *");
  change("csrc/smxx_scale.cu", "factor +", "factor *");
  workshop().must(words);
  CHECK(libraries() == before);
}

TEST_CASE("build: no variable of the environment gets into a library") {
  const std::vector<std::string> words = {"scale", "--only", "cpu-x86-64-v3"};
  workshop().must(words);
  const std::string before = read_file(workshop().variant("cpu-x86-64-v3") / "libscale.so");
  const fs::path headers = workshop().packages() / "headers";
  write_file(headers / "package.gen.hpp", "#error \"of the environment\"\n");
  for (const char* name : {"CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH"}) {
    setenv(name, headers.c_str(), 1);
  }
  fs::remove_all(workshop().out() / ".work/scale");
  workshop().must(words);
  for (const char* name : {"CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH"}) {
    unsetenv(name);
  }
  CHECK(read_file(workshop().variant("cpu-x86-64-v3") / "libscale.so") == before);
  fs::remove_all(headers);
}

TEST_CASE("build: what package.json says of the CPU's variants is nothing of a GPU variant's") {
  const std::vector<std::string> command = {"scale", "--only",
                                            "cu12.9-sm_90a-x86_64,cpu-x86-64-v3"};
  workshop().must(command);
  const std::string gpu = workshop().config("cu12.9-sm_90a-x86_64").build_id;
  const std::string cpu = workshop().config("cpu-x86-64-v3").build_id;
  workshop().replace("package.json", "\"levels\": [", "\"levels\": [\"x86-64-v4-amx\", ");
  workshop().must(command);
  workshop().must({"scale", "--only", "cpu-x86-64-v4-amx"});  // which has the SDK's constructor
  CHECK(workshop().config("cu12.9-sm_90a-x86_64").build_id == gpu);
  CHECK(workshop().config("cpu-x86-64-v3").build_id != cpu);
  workshop().replace("package.json", "\"levels\": [\"x86-64-v4-amx\", ", "\"levels\": [");
}

TEST_CASE("build: a package is built from sources of the one beside it, and its id covers them") {
  const fs::path sharing = workshop().packages() / "sharing";
  fs::create_directories(sharing);
  const std::string text = read_file(workshop().package() / "package.json");
  json document = json::parse(text);
  document["name"] = "sharing";
  for (json& source : document["cpu"]["host"]) source = "../scale/" + source.get<std::string>();
  for (json& source : document["cuda"]["host"]) source = "../scale/" + source.get<std::string>();
  for (json& device : document["cuda"]["device"]) {
    device["source"] = "../scale/" + device["source"].get<std::string>();
  }
  write_file(sharing / "package.json", document.dump());
  const std::vector<std::string> command = {"sharing", "--only",
                                            "cpu-x86-64-v3,cu12.9-sm_90a-x86_64"};
  const auto id = [](const std::string& variant) {
    const fs::path config = workshop().out() / "sharing" / variant / "config.json";
    return parse_config(read_file(config), "config").build_id;
  };
  workshop().must(command);
  const std::string cpu = id("cpu-x86-64-v3");
  const std::string gpu = id("cu12.9-sm_90a-x86_64");
  CHECK(workshop().run(command).output.find("are up to date") != std::string::npos);
  const auto image_of = [](const std::string& package) {
    return workshop().out() / ".work" / package / "device/cu12.9-sm_90a/csrc+smxx_scale.cubin";
  };
  const auto own_image = [] {  // of what lies beside the package, and is compiled for it alone
    return workshop().out() / ".work/sharing/device/cu12.9-sm_90a/+scale+csrc+smxx_scale.cubin";
  };
  CHECK(fs::exists(image_of("scale")));  // once for both
  CHECK_FALSE(fs::exists(own_image()));
  // So is what reads the SDK alone; what reads a generated header is the package's own.
  const auto has_object = [](const std::string& owner, const std::string& source) {
    return fs::exists(workshop().out() / ".work" / owner / "host/x86-64-v3" / (source + ".o"));
  };
  CHECK(has_object("kiln.sdk", "src+check.cpp"));
  CHECK(has_object("sharing", "+scale+csrc+cpu_package.cpp"));
  CHECK_FALSE(has_object("scale", "src+check.cpp"));
  CHECK_FALSE(has_object("sharing", "src+check.cpp"));

  workshop().replace("csrc/block.cuh", "256", "128");
  workshop().must(command);
  workshop().replace("csrc/block.cuh", "128", "256");
  CHECK(id("cu12.9-sm_90a-x86_64") != gpu);
  CHECK(id("cpu-x86-64-v3") == cpu);

  // A header of its own, found before the other's: an image of its own.
  workshop().replace("csrc/smxx_scale.cu", "\"block.cuh\"", "<block.cuh>");
  fs::create_directories(sharing / "csrc");
  write_file(sharing / "csrc/block.cuh", "#define SCALE_THREADS 64\n");
  workshop().must({"scale", "sharing", "--only", "cu12.9-sm_90a-x86_64"});
  CHECK(fs::exists(own_image()));
  CHECK(read_file(own_image()) != read_file(image_of("scale")));
  workshop().replace("csrc/smxx_scale.cu", "<block.cuh>", "\"block.cuh\"");

  fs::rename(workshop().package(), workshop().packages() / "elsewhere");
  const Finished alone = workshop().run(command);
  fs::rename(workshop().packages() / "elsewhere", workshop().package());
  CHECK(alone.status == 15);
  CHECK_MESSAGE(
      alone.output.find("it shares sources of scale, and there is no ") != std::string::npos,
      alone.output);
  fs::remove_all(sharing);
}

TEST_CASE("build: sources of one name in two folders are two, in one package and of two") {
  const std::string gpu = "cu11.8-compute_80-x86_64";
  const json base = json::parse(read_file(workshop().package() / "package.json"));
  const fs::path shared = workshop().packages() / "kernels";
  const std::string kernel = read_file(workshop().package() / "csrc/smxx_scale.cu");
  for (const char* each : {"first", "second"}) {
    const fs::path folder = workshop().packages() / each;
    json document = base;
    document["name"] = each;
    document["cuda"].erase("needs");
    document["cuda"]["device"][0] = {
        {"source", std::string("../kernels/") + each + "/smxx_scale.cu"},
        {"targets", {"compute_80"}}};
    document["cpu"]["host"] = {"csrc/norm/cpu.cpp", "csrc/norm_cpu.cpp"};
    write_file(folder / "package.json", document.dump());
    write_file(folder / "csrc/package.cpp", read_file(workshop().package() / "csrc/package.cpp"));
    write_file(folder / "csrc/block.cuh", read_file(workshop().package() / "csrc/block.cuh"));
    const std::string code = read_file(workshop().package() / "csrc/cpu_package.cpp");
    const std::size_t run = code.find("int32_t run(");
    write_file(folder / "csrc/norm/cpu.cpp", code.substr(0, run) + "}\n");
    write_file(folder / "csrc/norm_cpu.cpp",
               code.substr(0, code.find("size_t run_")) + code.substr(run));
    write_file(
        shared / each / "smxx_scale.cu",
        std::string("constexpr float kAdded = ") + (each[0] == 'f' ? "1" : "2") + ";\n" +
            std::string(kernel)
                .replace(kernel.find("factor * x[i]"), 13, "x[i] + kAdded")
                .replace(kernel.find("#include \"block.cuh\""), 20, "#define SCALE_THREADS 64"));
  }
  workshop().must({"first", "second", "--only", "cpu-x86-64-v3," + gpu});
  const auto image_of = [&](const std::string& package) {
    return read_file(workshop().out() / ".work/kernels/device/cu11.8-compute_80" /
                     (package + "+smxx_scale.ptx"));
  };
  CHECK(image_of("first") != image_of("second"));
  for (const std::string package : {"first", "second"}) {
    const std::string library =
        read_file(workshop().out() / package / gpu / ("lib" + package + ".so"));
    CHECK(library.find(image_of(package)) != std::string::npos);
    fs::remove_all(workshop().packages() / package);
  }
  fs::remove_all(shared);
}

TEST_CASE("build: two folders of one name are not built together") {
  const fs::path other = workshop().packages() / "copies" / "scale";
  fs::create_directories(other.parent_path());
  fs::copy(workshop().package(), other, fs::copy_options::recursive);
  const Finished both =
      workshop().run({workshop().package().string(), other.string(), "--only", "cpu-x86-64-v3"});
  CHECK(both.status == 2);
  CHECK_MESSAGE(both.output.find(" are both called scale; expected one folder of a name") !=
                    std::string::npos,
                both.output);
  fs::remove_all(other.parent_path());
}

TEST_CASE("build: a failing step names the variant and shows the compiler's text") {
  struct Row {
    const char* file;
    const char* from;
    const char* to;
    const char* only;
    std::vector<std::string> shown;
  };
  const Row rows[] = {
      {"csrc/smxx_scale.cu",
       "factor * x[i]",
       "factor * z[i]",
       "cu13.5-sm_80-*",
       {"nvrtc scale cu13.5-sm_80:", "identifier \"z\" is undefined"}},
      {"csrc/cpu_package.cpp", "return 0;", "return zero;", "cpu-x86-64-v3", {"'zero'"}},
      {"csrc/package.cpp",
       "namespace kiln::package {",
       "namespace kiln::package { extern int elsewhere(); int (*volatile held)() = elsewhere;",
       "cu13.5-sm_80-*",
       {"undefined symbol", "elsewhere", "is defined by no source of the package"}},
      {"csrc/cpu_package.cpp",
       "  const float* x",
       "  float* volatile held = new float;\n  const float* x",
       "cpu-x86-64-v3",
       {"operator new", "is of the C++ runtime, which a package does not have"}},
      {"csrc/package.cpp",
       "\"scale\", 0",
       "\"scale_b16\", 0",
       "cu13.5-sm_80-x86_64",
       {"inspect scale cu13.5-sm_80-x86_64: kernel_list() names scale_b16 (smxx_scale)",
        "its images have scale (smxx_scale)"}},
      {"csrc/package.cpp",
       "{\"smxx_scale\", ",
       "{\"smxx_scala\", ",
       "cu11.8-compute_80-x86_64",
       {"its images have scale (smxx_scale), which kernel_list() does not name"}},
  };
  for (const Row& row : rows) {
    workshop().replace(row.file, row.from, row.to);
    const Finished finished = workshop().run({"scale", "--only", row.only});
    workshop().replace(row.file, row.to, row.from);
    CHECK(finished.status == 15);
    for (const std::string& text : row.shown) {
      CHECK_MESSAGE(finished.output.find(text) != std::string::npos, finished.output);
    }
  }
}

TEST_CASE("build: a module for Python that Python cannot compile is refused") {
  const std::vector<std::string> words = {"scale", "--only", "cpu-x86-64-v3"};
  const fs::path module = workshop().package() / "python/scale.py";
  workshop().replace("package.json", "\"ops\": [", "\"python\": [\"python/scale.py\"], \"ops\": [");
  struct Row {
    std::string text;
    std::string shown;
  };
  const Row rows[] = {
      {"x = 1\ndef f(:\n", "/scale.py:2: invalid syntax\n"},
      {"x = 1\n\nreturn x\n", "/scale.py:3: 'return' outside function\n"},
      {"x = '\xff'\n", "(unicode error) 'utf-8' codec can't decode byte"},
      {std::string("x = 1\0\n", 7), "source code string cannot contain null bytes\n"},
  };
  for (const Row& row : rows) {
    write_file(module, row.text);
    const Finished finished = workshop().run(words);
    CHECK(finished.status == 15);
    CHECK_MESSAGE(finished.output.find(row.shown) != std::string::npos, finished.output);
    CHECK(finished.output.find("So says Python 3.") != std::string::npos);
  }
  fs::remove(module);
  const Finished absent = workshop().run(words);
  CHECK(absent.status == 15);
  CHECK_MESSAGE(absent.output.find("No such file or directory: ") != std::string::npos,
                absent.output);
  write_file(module, "\"\"\"y = factor * x\"\"\"\nx = '\\d' is 'd'\n");  // a warning is no fault
  const Finished good = workshop().run(words);
  CHECK_MESSAGE(good.status == 0, good.output);
  CHECK(good.output.find("Python") == std::string::npos);
  CHECK_FALSE(fs::exists(module.parent_path() / "__pycache__"));

  // Where there is no Python it is said.
  const fs::path prefix = workshop().packages() / "toolchains";
  fs::create_directories(prefix);
  for (const char* each : {"zig", "zig-cache"}) {
    if (fs::exists(toolchains() / each)) fs::create_symlink(toolchains() / each, prefix / each);
  }
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const Finished unchecked = run_captured(
      {paths::kBuildProgram, "--toolchains", prefix.string(), "--out", workshop().out().string(),
       workshop().package().string(), "--only", "cpu-x86-64-v3"});
  setenv("PATH", path.c_str(), 1);
  CHECK_MESSAGE(unchecked.status == 0, unchecked.output);
  CHECK_MESSAGE(
      unchecked.output.find("scale.py was not checked, since no Python ran (run python3") !=
          std::string::npos,
      unchecked.output);
  fs::remove_all(prefix);
  fs::remove_all(module.parent_path());
  workshop().replace("package.json", "\"python\": [\"python/scale.py\"], \"ops\": [", "\"ops\": [");
}

TEST_CASE("build: a card that no reader could show is refused, and one behind a link is taken") {
  const std::vector<std::string> words = {"scale", "--only", "cpu-x86-64-v3"};
  const fs::path card = workshop().package() / "CARD.md";
  const auto refused = [&](const std::string& says) {
    const Finished finished = workshop().run(words);
    CHECK(finished.status == 15);
    CHECK_MESSAGE(finished.output.find("read " + card.string() + ": " + says) != std::string::npos,
                  finished.output);
    fs::remove_all(card);
  };
  REQUIRE(mkfifo(card.c_str(), 0644) == 0);
  refused("it is a pipe or a device, expected a file; expected a file of text in UTF-8");
  fs::create_directory(card);
  refused("");
  fs::create_symlink("none.md", card);
  refused("No such file or directory");
  write_file(card, "caf\xe9\n");
  refused("it is not UTF-8");
  write_file(card, std::string(kMaxDocumentBytes + 1, 'x'));
  refused("it has more than");
  write_file(workshop().package() / "README.md", "# scale\n");
  fs::create_symlink("README.md", card);
  workshop().must(words);
  const std::vector<ArchiveFile> files = workshop().config("cpu-x86-64-v3").dev_files;
  const auto packed = std::ranges::find(files, "CARD.md", &ArchiveFile::path);
  REQUIRE(packed != files.end());
  CHECK(packed->digest == Digest::of("# scale\n"));
  fs::remove(card);
}

TEST_CASE("build: a folder may have any name") {
  const auto build_into = [](const fs::path& folder) {
    return run_captured({paths::kBuildProgram, "--toolchains", toolchains().string(), "--packages",
                         workshop().packages().string(), "--out", folder.string(), "scale",
                         "--only", "cpu-x86-64-v3"});
  };
  const fs::path odd = workshop().out().parent_path() / "of; #$(touch x) $x \"'* {out} all";
  const Finished finished = build_into(odd);
  CHECK_MESSAGE(finished.status == 0, finished.output);
  const Finished refused = build_into(workshop().out() / "two\nlines");
  CHECK(refused.status == 2);
  CHECK_MESSAGE(refused.output.find("two\\x0alines\" has a line break") != std::string::npos,
                refused.output);
  workshop().must({"scale", "--only", "cpu-x86-64-v3"});
  CHECK(read_file(odd / "scale/cpu-x86-64-v3/libscale.so") ==
        read_file(workshop().variant("cpu-x86-64-v3") / "libscale.so"));
}

TEST_CASE("build: requests that cannot be meant are refused") {
  struct Row {
    std::vector<std::string> arguments;
    int status;
    const char* shown;
  };
  const Row rows[] = {
      {{"scale", "--only", "cu99*"}, 2, "no variant matches --only 'cu99*'"},
      {{"scale", "--only", "cpu-*,cu99*"}, 2, "no variant matches --only 'cu99*'"},
      {{"scale", "--here", "--only", "cu99*"}, 2, "no variant matches --only 'cu99*'"},
      {{"absent"}, 4, "there is no"},
      {{"--frobnicate"}, 2, "frobnicate"},
      {{"scale", "--only", "cpu-*", "--toolchains", "/nonexistent"}, 15, "run 'ci/toolchains"},
  };
  for (const Row& row : rows) {
    const Finished finished = workshop().run(row.arguments);
    CHECK_MESSAGE(finished.status == row.status, finished.output);
    CHECK_MESSAGE(finished.output.find(row.shown) != std::string::npos, finished.output);
  }
}

TEST_CASE("build: --here is this machine's variants, and those that --only adds") {
  // GPUs for the test: the overrides that resolve has, too. Its CPU is this machine's: expand_test
  // has a table of others.
  const CpuLevel cpu = probe_cpu(probe_arch());
  const bool has_cpu_variant = cpu.arch == Arch::kX86_64 && cpu.level >= 3;
  struct Row {
    const char* cuda;
    const char* sm;
    std::vector<std::string> words;
    std::vector<std::string> expected;
    bool here;
  };
  const Row rows[] = {
      {"13.0", "9.0", {"--here"}, {"cu13.5-sm_90a-x86_64"}, true},
      {"", "", {"--here", "--only", "cu13.5-sm_80-*"}, {"cu13.5-sm_80-x86_64"}, true},
      {"", "", {"--only", "cu13.5-sm_80-*"}, {"cu13.5-sm_80-x86_64"}, false},
  };
  const std::string text = read_file(workshop().package() / "package.json");
  json document = json::parse(text);
  document["cuda"].erase("needs");  // this machine may lack them
  write_file(workshop().package() / "package.json", document.dump());
  for (const Row& row : rows) {
    setenv("KILN_OVERRIDE_CUDA", row.cuda, 1);
    setenv("KILN_OVERRIDE_SM", row.sm, 1);
    std::vector<std::string> words = {"scale", "--list", "--json"};
    words.insert(words.end(), row.words.begin(), row.words.end());
    const Finished finished = workshop().run(words);
    REQUIRE_MESSAGE(finished.status == 0, finished.output);
    std::vector<std::string> expected = row.expected;
    if (row.here && has_cpu_variant) expected.emplace_back("cpu-x86-64-v3");
    CHECK(json::parse(finished.output).at("variants") == json(expected));
  }
  document.erase("cpu");
  write_file(workshop().package() / "package.json", document.dump());
  setenv("KILN_OVERRIDE_CUDA", "", 1);
  setenv("KILN_OVERRIDE_SM", "", 1);
  const Finished none = workshop().run({"scale", "--here", "--list"});
  write_file(workshop().package() / "package.json", text);
  CHECK(none.status == 3);
  CHECK_MESSAGE(none.output.find("no variant fits the machine") != std::string::npos, none.output);
  unsetenv("KILN_OVERRIDE_CUDA");
  unsetenv("KILN_OVERRIDE_SM");
}

TEST_CASE("build: --host is another machine's variants, each with the resolver's reason") {
  const fs::path facts = workshop().out() / "spark.json";
  write_file(facts, R"({"schema": "kiln.host/1", "arch": "aarch64", "cpu": "armv8-a",
      "glibc": "2.39", "driver": "13.0", "overridden": [],
      "gpus": [{"ordinal": 0, "name": "NVIDIA GB10", "capability": "12.1"}],
      "libraries": {"libnvrtc.so.12": true, "libnvJitLink.so.12": true}})");
  const Finished spark = workshop().run({"scale", "--list", "--json", "--host", facts.string()});
  REQUIRE_MESSAGE(spark.status == 0, spark.output);
  const json listed = json::parse(spark.output);
  CHECK(listed.at("variants") == json({"cu13.5-sm_120-aarch64", "cpu-armv8-a"}));
  CHECK(listed.at("devices").at(0).at("variant") == "cpu-armv8-a");
  CHECK(listed.at("devices").at(1).at("variant") == "cu13.5-sm_120-aarch64");
  CHECK(listed.at("devices").at(1).at("why").get<std::string>().starts_with("sm_120, runs on"));
  CHECK(workshop().run({"scale", "--list", "--here", "--host", facts.string()}).status == 2);
}

TEST_CASE("build: a variant that is no longer one does not stay to be published") {
  workshop().must({"scale", "--only", "cpu-x86-64-v3,cu12.9-sm_120-*"});
  CHECK(fs::exists(workshop().variant("cu12.9-sm_120-x86_64")));
  workshop().replace("package.json", "\"sm_120\", ", "");
  workshop().must({"scale", "--only", "cpu-x86-64-v3"});
  CHECK_FALSE(fs::exists(workshop().variant("cu12.9-sm_120-x86_64")));
  workshop().replace("package.json", "\"compute_80\"", "\"sm_120\", \"compute_80\"");
}

}  // namespace
}  // namespace kiln::build

int main(int argc, char** argv) {
  if (!std::filesystem::exists(kiln::build::toolchains() / "zig")) {
    std::printf("skipped: no compilers in %s; run ci/toolchains\n",
                kiln::build::toolchains().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
