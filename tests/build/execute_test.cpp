// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/execute.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "build-matrix/base/files.hpp"
#include "build-matrix/compilers/toolchain.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

std::string made(const std::string& name) {
  return std::string(kOut) + "/" + name;
}

/// A build of two steps in a folder of its own: "compile" writes a source and its headers in one
/// file, "link" adds another one.
class Bench {
 public:
  Bench() {
    std::string name = (fs::temp_directory_path() / "kiln-execute-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root = fs::canonical(name);
    write("src/a.c", "#include \"a.h\"\nint a;\n");
    write("lib/a.h", "int header;\n");
    write("lib/end.txt", "the end\n");
  }
  ~Bench() { fs::remove_all(root); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void write(const std::string& file, const std::string& text) const {
    write_file(root / file, text);
  }
  std::string read(const std::string& file) const { return read_file(root / file); }

  std::vector<Step> steps() const {
    const std::string list = (root / "lib/end.txt").string();
    // What is included stands behind the source; the list of what was read is a compiler's.
    return {{.kind = "compile",
             .what = "a.o",
             .command = {"/bin/sh", "-c", script, (root / "src/a.c").string(),
                         (root / "lib").string(), made("a.o")},
             .environment = environment,
             .tool = tool,
             .tool_folder = root / "tool",
             .inputs = {root / "src/a.c"},
             .searched = {root / "own", root / "lib"},
             .folder = root / "out",
             .outputs = {"a.o"},
             .stamp = root / "out/a.o.stamp"},
            {.kind = "link",
             .what = "a.so",
             .command = {"/bin/sh", "-c", "cat \"$0\" \"$1\" >\"$2/a.so\"; echo ok >\"$2/done\"",
                         (root / "out/a.o").string(), list, std::string(kOut)},
             .tool = "linker",
             .inputs = {root / "out/a.o", root / "lib/end.txt"},
             .folder = root / "out",
             .outputs = {"a.so", "done"},
             .absent = {"not"},
             .stamp = root / "out/a.so.stamp"}};
  }

  /// Which steps ran: "compile link".
  std::string build() {
    Sources sources({root / "tool"});
    progress.str("");
    std::string ran;
    for (const Took& took : execute(steps(), sources, root / "running", 2, progress)) {
      ran += (ran.empty() ? "" : " ") + took.kind;
    }
    CHECK_FALSE(fs::exists(root / "running"));
    return ran;
  }

  fs::path root;
  std::string script = "{ cat \"$0\" && cat \"$1\"/*.h && echo \"$MODE\"; } >\"$2\"";
  std::vector<std::string> environment = {"MODE=fast"};
  std::string tool = "compiler 1";
  std::ostringstream progress;
};

std::string failure(Bench& bench) {
  try {
    bench.build();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBuild);
    CHECK_FALSE(fs::exists(bench.root / "running"));
    return error.what();
  }
  return "";
}

/// Other bytes of the same length, in the same file, with the time that it had.
void replace_in_place(const fs::path& path) {
  struct stat before {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  std::string text = read_file(path);
  text[0] = text[0] == 'X' ? 'Y' : 'X';
  std::ofstream(path, std::ios::binary | std::ios::in).write(text.data(), 1);
  const timespec times[] = {before.st_atim, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

TEST_CASE("execute: what was made of the same bytes by the same command is not made again") {
  struct Row {
    const char* what;
    std::function<void(Bench&)> change;
    const char* ran;
  };
  const auto touch = [](const fs::path& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::hours(1));
  };
  const Row rows[] = {
      {"nothing", [](Bench&) {}, ""},
      {"a newer time", [&](Bench& b) { touch(b.root / "src/a.c"); }, ""},
      {"another source of the same size and time",
       [](Bench& b) { replace_in_place(b.root / "lib/end.txt"); }, "link"},
      {"an older source",
       [](Bench& b) {
         b.write("src/a.c", "#include \"a.h\"\nint b;\n");
         fs::last_write_time(b.root / "src/a.c", fs::file_time_type{});
       },
       "compile link"},
      {"another header of the same size and time",
       [](Bench& b) { replace_in_place(b.root / "lib/a.h"); }, "compile link"},
      {"a header that stands before it, and its bytes come out the same",
       [](Bench& b) { b.write("own/a.h", "int header;\n"); }, "compile"},
      {"a header beside the source", [](Bench& b) { b.write("src/a.h", "\n"); }, "compile"},
      {"another command", [](Bench& b) { b.script += "; true"; }, "compile"},
      {"another environment", [](Bench& b) { b.environment = {"MODE=slow"}; }, "compile link"},
      {"another compiler", [](Bench& b) { b.tool = "compiler 2"; }, "compile"},
      {"a result that was edited", [](Bench& b) { replace_in_place(b.root / "out/a.o"); },
       "compile"},
      {"a result that was cut", [](Bench& b) { b.write("out/a.so", ""); }, "link"},
      {"a result that is gone", [](Bench& b) { fs::remove(b.root / "out/done"); }, "link"},
      {"a folder in the place of one",
       [](Bench& b) {
         fs::remove(b.root / "out/done");
         b.write("out/done/file", "");
       },
       "link"},
      {"a file that must not be there", [](Bench& b) { b.write("out/not", ""); }, "link"},
      {"a stamp that is gone", [](Bench& b) { fs::remove(b.root / "out/a.o.stamp"); }, "compile"},
      {"a stamp that was cut", [](Bench& b) { b.write("out/a.o.stamp", "kiln.stamp/1\n"); },
       "compile"},
      {"the folder of a build that was killed", [](Bench& b) { b.write("running/0/a.o", "half"); },
       ""},
  };
  for (const Row& row : rows) {
    Bench bench;
    CHECK(bench.build() == "compile link");
    const std::string first = bench.read("out/a.so");
    row.change(bench);
    const std::string ran = bench.build();
    CHECK_MESSAGE(ran == row.ran, row.what, ": ", ran);
    CHECK(bench.read("out/done") == "ok\n");
    CHECK_FALSE(fs::exists(bench.root / "out/not"));
    // The result is that of a build in a fresh folder.
    const std::string now = bench.read("out/a.so");
    fs::remove_all(bench.root / "out");
    CHECK(bench.build() == "compile link");
    CHECK_MESSAGE(bench.read("out/a.so") == now, row.what);
    CHECK(bench.build().empty());
  }
}

TEST_CASE("execute: what a file held before is known again only if the result is") {
  Bench bench;
  bench.build();
  bench.write("src/a.c", "int other;\n");
  CHECK(bench.build() == "compile link");
  bench.write("src/a.c", "#include \"a.h\"\nint a;\n");
  CHECK(bench.build() == "compile link");
}

TEST_CASE("execute: a header that is gone makes its step run, and fail if it needs it") {
  Bench bench;
  bench.build();
  fs::remove(bench.root / "lib/a.h");
  CHECK_FALSE(failure(bench).empty());
  CHECK_FALSE(failure(bench).empty());  // and stays so
  bench.write("lib/a.h", "int header;\n");
  CHECK(bench.build().empty());  // the result of before is still the one
}

TEST_CASE("execute: a step that fails leaves what was there, and says its command") {
  Bench bench;
  bench.build();
  const std::string good = bench.read("out/a.o");
  const std::string script = bench.script;
  bench.script = "echo half >\"$2\"; echo 'a.c:1: no such thing' >&2; exit 3";
  const std::string said = failure(bench);
  CHECK(said.find("compile a.o: it ended with status 3") == 0);
  CHECK(said.find("/bin/sh -c echo\\ half") != std::string::npos);
  CHECK(said.find("It said:\na.c:1: no such thing\n") !=
        std::string::npos);  // -q drops what is progress
  CHECK(bench.read("out/a.o") == good);
  bench.script = "exit 0";
  CHECK(failure(bench).find("it ended well and made no a.o") != std::string::npos);
  bench.script = script;
  CHECK(bench.build().empty());
}

TEST_CASE("execute: what a killed build left half is made anew") {
  Bench bench;
  bench.build();
  bench.write("src/a.c", "int other;\n");
  // Killed between the output and its stamp, and then the source is what it was.
  bench.write("out/a.o", "of the other source");
  bench.write("src/a.c", "#include \"a.h\"\nint a;\n");
  CHECK(bench.build() == "compile");
  // Killed among the outputs: the last one is gone first.
  bench.write("lib/end.txt", "another end\n");
  bench.script += "; true";
  fs::create_directory(bench.root / "out/a.so.stamp.tmp");
  CHECK(bench.build() == "compile link");
}

TEST_CASE("execute: a source that changes while it is read is not taken for what was hashed") {
  Bench bench;
  bench.script += "; echo 'int late;' >>\"$0\"";
  const std::string said = failure(bench);
  CHECK_MESSAGE(said.find("src/a.c was changed while the build read it") != std::string::npos,
                said);
  CHECK_FALSE(fs::exists(bench.root / "out/a.o"));
}

TEST_CASE("execute: a compiler that reads what no include names is found out") {
  Bench bench;
  bench.write("lib/b.h", "int unseen;\n");
  bench.write("tool/stdlib.h", "int library;\n");
  const std::string script = bench.script;
  const auto reads = [&](const std::string& file) {
    return script + "; printf 'a.o: %s \\\\\\n  %s %s\\n' \"$0\" \"$1/a.h\" \"$1/" + file +
           "\" >\"${2%/*}/read.d\"";
  };
  bench.script = reads("b.h");
  CHECK(failure(bench).find("lib/b.h, which no #include that the build follows names") !=
        std::string::npos);
  bench.script = reads("../tool/stdlib.h");
  CHECK(bench.build() == "compile link");
}

TEST_CASE("execute: a disk that is full fails the step, and leaves no stamp") {
  Bench bench;
  bench.script = "cat \"$0\" >/dev/full && cat \"$0\" >\"$2\"";
  CHECK(failure(bench).find("it ended with status") != std::string::npos);
  CHECK_FALSE(fs::exists(bench.root / "out/a.o.stamp"));
}

TEST_CASE("sources: what is included is found by its text") {
  using Names = std::vector<Include>;
  struct Row {
    const char* text;
    Names names;
    const char* computed;
  };
  const Row rows[] = {
      {"#include \"a.h\"\n  #  include <b/c.h> // x\n", {{"a.h", true}, {"b/c.h", false}}, ""},
      {"#include\t/* why */ \"a.h\"\n/* first */ #include <b>\n",
       {{"a.h", true}, {"b", false}},
       ""},
      {"// #include \"a.h\"\n/*\n#include \"b.h\"\n*/\nint x; #include \"c.h\"\n", {}, ""},
      {"#inc\\\nlude \\\n  \"a.h\"\n", {{"a.h", true}}, ""},
      {"%:include \"a.h\"\r\n", {{"a.h", true}}, ""},
      {"#include <a//b.h>\n#include \"c/*d.h\"\n#include \"e.h\"\n",
       {{"a//b.h", false}, {"c/*d.h", true}, {"e.h", true}},
       ""},
      {"#include_next <a.h>\n", {{"a.h", false, true}}, ""},
      {"#embed \"a.bin\" limit(4)\n", {{"a.bin", true, false, true}}, ""},
      {"#if __has_include(\"a.h\") && __has_include( <b.h> )\n#endif\n",
       {{"a.h", true}, {"b.h", false}},
       ""},
      {"#if defined(__has_include)\n", {}, ""},
      {"auto s = \"// \"; auto t = '\"';\n#include \"a.h\"\n", {{"a.h", true}}, ""},
      {"int n = 1'000'000; // '\n#include \"a.h\"\n", {{"a.h", true}}, ""},
      {"auto s = R\"x(\n#include \"no.h\"\n)y\" )x\";\n#include \"a.h\"\n", {{"a.h", true}}, ""},
      {"#define H \"a.h\"\n#include H\n", {}, "#include H"},
      {"#embed FILE\n", {}, "#embed FILE"},
      {"asm(\".incbin \\\"a.bin\\\"\");\n", {}, "asm(\".incbin \\\"a.bin\\\"\");"},
      {"asm(R\"(\n .incbin \"a\"\n)\");\n", {}, "asm(R\"(  .incbin \"a\" )\");"},
      {"int x = options.include;\n", {}, ""},
      {"#included \"a.h\"\n#include_\n", {}, ""},
      {"#include \"a.h", {}, "#include \"a.h"},
  };
  for (const Row& row : rows) {
    const Includes found = scan_includes(row.text);
    CHECK_MESSAGE(found.names == row.names, row.text);
    CHECK_MESSAGE(found.computed == row.computed, row.text);
  }
}

TEST_CASE("sources: a name that is computed is refused, but for a compiler's own files") {
  Bench bench;
  bench.write("src/a.c", "#define NAME <tool.h>\n#include NAME\n");
  CHECK(failure(bench).find("\"#include NAME\" does not name a file") != std::string::npos);
  bench.write("lib/a.h", "");
  bench.write("tool/t.h", "#include NAME\n");
  Sources sources({bench.root / "tool"});
  bench.write("src/a.c", "#include <t.h>\n#include <a.h>\n");
  CHECK(
      sources.closure({bench.root / "src/a.c"}, {bench.root / "tool", bench.root / "lib"}) ==
      std::set<fs::path>{bench.root / "src/a.c", bench.root / "tool/t.h", bench.root / "lib/a.h"});
}

TEST_CASE("toolchain: a compiler whose bytes changed is another one, whatever its times say") {
  Bench bench;
  const fs::path tool = bench.root / "tool";
  const auto digest = [&] { return tree_digest(tool, bench.root / "memos"); };
  bench.write("tool/zig", "zig\n");
  bench.write("tool/lib/a.h", "int a;\n");
  const std::string first = digest();
  CHECK(digest() == first);
  // As if the files had been there for long: the memo is written, and believed.
  replace_in_place(tool / "lib/a.h");
  const std::string second = digest();
  CHECK(second != first);
  fs::rename(tool / "lib/a.h", tool / "lib/b.h");
  CHECK(digest() != second);
  fs::rename(tool / "lib/b.h", tool / "lib/a.h");
  CHECK(digest() == second);
  fs::remove(tool / "lib/a.h");
  CHECK(digest() != second);
}

TEST_CASE("execute: what a killed build left running writes into no other build") {
  Bench bench;
  const std::string plain = bench.script;
  // As a compiler whose build is gone: it goes on, and writes where it was told to.
  const auto when = [&](const char* file) {  // half a minute at most
    return "n=600; until test -e " + (bench.root / file).string() +
           " || test $n = 0; do sleep 0.05; n=$((n - 1)); done; ";
  };
  const auto mark = [&](const char* file) { return ": >" + (bench.root / file).string(); };
  bench.script +=
      "; (" + when("again") + "echo stale >\"$2\"; " + mark("written") + ") >/dev/null 2>&1 &";
  bench.build();
  bench.script = plain + "; " + mark("again") + "; " + when("written") + "true";
  bench.write("src/a.c", "#include \"a.h\"\nint fresh;\n");
  bench.build();
  CHECK(fs::exists(bench.root / "written"));
  CHECK(bench.read("out/a.so").find("fresh") != std::string::npos);
}

TEST_CASE("execute: what a compiler keeps in its folder for temporary files goes with the step") {
  Bench bench;
  bench.script +=
      "; echo \"${TMPDIR:?}\" >>\"${0%/src/*}/kept\"; echo half >\"$TMPDIR/cc.s\" || exit 1";
  bench.build();
  bench.write("src/a.c", "int other;\n");  // by the same command in the same environment
  CHECK(bench.build() == "compile link");
  CHECK(bench.build().empty());  // another folder makes no other step
  bench.script += "; kill -9 $$";
  CHECK(failure(bench).find("it ended with status 137") != std::string::npos);
  std::istringstream kept(bench.read("kept"));
  std::set<std::string> folders;
  for (std::string folder; std::getline(kept, folder);) {
    CHECK_MESSAGE(!below(bench.root / "running", folder).empty(), folder);
    CHECK_FALSE(fs::exists(folder));
    folders.insert(folder);
  }
  CHECK(folders.size() == 3);
  CHECK(bench.read("out/a.so").find(bench.root.string()) == std::string::npos);
}

TEST_CASE("steps: one that is there is not added again, and no file has two makers") {
  const Bench bench;
  StepList steps;
  Step step = bench.steps().front();
  steps.add(step);
  steps.add(step);
  CHECK(steps.list.size() == 1);
  step.what = "b.o";
  step.inputs.push_back(bench.root / "src/b.c");
  CHECK_THROWS_WITH_AS(steps.add(step),
                       ("build: " + (bench.root / "out/a.o").string() +
                        " would be made twice, as a.o and as b.o, of other files or by another "
                        "command. Build their packages one after the other, each with an --out of "
                        "its own")
                           .c_str(),
                       Error);
}

TEST_CASE("execute: more jobs than steps, or than threads, are no failure") {
  Bench bench;
  Sources sources({bench.root / "tool"});
  CHECK(execute(bench.steps(), sources, bench.root / "running", 4'000'000, bench.progress).size() ==
        2);
}

}  // namespace
}  // namespace kiln::build
