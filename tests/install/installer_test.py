#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""install.sh, as ci/release writes it, against a server on this machine: what it fetches is verified, whatever goes wrong
leaves nothing, and nothing is written outside of its prefix. The tars have a script in place of the command.

    installer_test.py
"""

import http.server
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
REFUSED, USAGE, LACKING = 1, 2, 3
MACHINE = os.uname().machine
TAR = f"kiln-1.2.3-linux-{MACHINE}.tar.gz"


def load_release():
    loader = importlib.machinery.SourceFileLoader("release", str(SOURCE / "ci/release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


class Handler(http.server.SimpleHTTPRequestHandler):
    how = "whole"
    tested = threading.Event()  # ends what stalls

    def do_GET(self):
        file = pathlib.Path(self.translate_path(self.path))
        if self.how == "whole" or not file.exists():
            super().do_GET()
            return
        if self.how == "silent":
            self.tested.wait()
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.how == "slow":
            for at in range(0, len(content), len(content) // 9):
                self.wfile.write(content[at:at + len(content) // 9])
                time.sleep(0.5)
            return
        self.wfile.write(content[:len(content) // 2])
        if self.how == "stalls":
            self.tested.wait()
        self.close_connection = True

    def log_message(self, *arguments):
        del arguments


class InstallerTest(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.work)
        self.home, self.release = self.work / "home", self.work / "release"
        self.home.mkdir()
        self.release.mkdir()
        self.pack(TAR, f"kiln-1.2.3-linux-{MACHINE}", {"bin/kiln": "#!/bin/sh\necho kiln 1.2.3\n",
                                                       "bin/kiln-registry": "#!/bin/sh\n"})
        self.pack("kiln-kernels-1.2.3.tar.gz", "kiln-kernels-1.2.3", {"share/kiln/registry.root.json": "{}"})
        Handler.how = "whole"
        Handler.tested.clear()
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *words: Handler(*words, directory=str(self.release)))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(Handler.tested.set)
        url = f"http://127.0.0.1:{self.server.server_port}"
        self.script = self.work / "install.sh"
        self.script.write_text(load_release().installer("1.2.3", url, self.release))

    def pack(self, name, top, files):
        place = self.work / "pack" / top
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)
            (place / path).chmod(0o755)
        for folder in (place, *place.rglob("*/")):
            folder.chmod(0o755)  # as in a release, whatever the umask here
        with tarfile.open(self.release / name, "w:gz") as tar:
            tar.add(place, top)

    def install(self, *words, path=None, **environment):
        self.files_before = self.outside()
        done = subprocess.run(["/bin/sh", self.script, *words], check=False, capture_output=True, text=True, cwd=self.work,
                              timeout=120, env={"HOME": str(self.home), "PATH": path or os.environ["PATH"]} | environment)
        self.assertEqual(self.outside(), self.files_before, "something was written outside of the prefix")
        return done.returncode, done.stderr

    def outside(self):
        return sorted(str(file) for file in self.work.rglob("*") if self.home not in [file, *file.parents])

    def inside(self):
        return sorted(str(file.relative_to(self.home)) for file in self.home.rglob("*"))

    def refused(self, code, *texts, words=(), **more):
        found, said = self.install(*words, **more)
        self.assertEqual(found, code, said)
        for text in (*texts, "Nothing was installed"):
            self.assertIn(text, said)
        self.assertEqual(self.inside(), [], said)
        return said

    def tools(self, *without):
        """A PATH without these programs."""
        place = self.work / "tools"
        place.mkdir()
        for folder in ("/usr/bin", "/bin"):
            for program in pathlib.Path(folder).iterdir():
                if program.name not in without and not (place / program.name).is_symlink():
                    (place / program.name).symlink_to(program)
        return str(place)

    def fake(self, program, text):
        place = self.work / "fake"
        place.mkdir(exist_ok=True)
        (place / program).write_text(f"#!/bin/sh\n{text}\n")
        (place / program).chmod(0o755)
        return f"{place}:{os.environ['PATH']}"

    def test_it_installs_and_again(self):
        for _ in range(2):
            code, said = self.install()
            self.assertEqual(code, 0, said)
            self.assertIn(f"installed kiln 1.2.3 in {self.home}/.local/opt/kiln-1.2.3", said)
            self.assertIn("add it to PATH", said)
            ran = subprocess.run([self.home / ".local/bin/kiln"], check=True, capture_output=True, text=True)
            self.assertEqual(ran.stdout, "kiln 1.2.3\n")
            self.assertEqual(sorted(os.listdir(self.home / ".local/opt")), ["kiln-1.2.3"])
        self.assertFalse((self.home / ".local/opt/kiln-1.2.3/share").exists())
        code, said = self.install("--prefix", "~/elsewhere".replace("~", str(self.home)), "--kernels")
        self.assertEqual(code, 0, said)
        self.assertTrue((self.home / "elsewhere/opt/kiln-1.2.3/share/kiln/registry.root.json").exists())

    def test_a_folder_with_the_files(self):
        folder = self.work / "a folder"
        self.release.rename(folder)
        path = self.tools("curl", "wget")
        for named in (str(folder), folder.name):
            code, said = self.install("--kernels", KILN_DOWNLOAD=named, path=path)
            self.assertEqual(code, 0, said)
            self.assertTrue((self.home / ".local/opt/kiln-1.2.3/share/kiln/registry.root.json").exists())
            shutil.rmtree(self.home / ".local")
        (folder / TAR).write_bytes((folder / TAR).read_bytes() + b"x")
        self.refused(REFUSED, "is not the file of this release", KILN_DOWNLOAD=str(folder), path=path)
        (folder / TAR).unlink()
        os.mkfifo(folder / TAR)
        self.refused(REFUSED, "cannot be fetched", KILN_DOWNLOAD=str(folder), path=path)

    def test_kernels_stay_with_their_version(self):
        for words in (["--kernels"], []):
            self.assertEqual(self.install(*words)[0], 0)
        self.assertTrue((self.home / ".local/opt/kiln-1.2.3/share/kiln/registry.root.json").exists())

    def test_a_prefix_of_any_name(self):
        for name in ("CORP\\me", "new\nline", "-x", "sl//", "a/./b"):
            prefix = f"{self.home}/{name}"
            code, said = self.install("--prefix", prefix)
            self.assertEqual(code, 0, said)
            self.assertTrue(os.access(f"{prefix}/bin/kiln", os.X_OK), name)

    def test_by_wget(self):
        if not shutil.which("wget"):
            self.skipTest("no wget")
        code, said = self.install(path=self.tools("curl"))
        self.assertEqual(code, 0, said)

    def test_another_file_is_refused(self):
        content = bytearray((self.release / TAR).read_bytes())
        content[len(content) // 2] ^= 1
        (self.release / TAR).write_bytes(content)
        self.refused(REFUSED, "is not the file of this release: expected SHA-256", "found")

    def test_other_kernels_are_refused(self):
        (self.release / "kiln-kernels-1.2.3.tar.gz").write_bytes(b"")
        self.refused(REFUSED, "kiln-kernels-1.2.3.tar.gz is not the file of this release", words=["--kernels"])

    def test_a_download_that_was_cut(self):
        Handler.how = "cut"
        self.refused(REFUSED, "was cut short")

    def waits(self, seconds):
        """The script with another patience, and without tries after the first."""
        text = self.script.read_text()
        for pattern, there in (("stall=30 ", f"stall={seconds} "), ("--retry 3", "--retry 0"), ("-t 4", "-t 1")):
            self.assertEqual(text.count(pattern), 1, pattern)
            text = text.replace(pattern, there)
        self.script.write_text(text)

    def test_a_download_that_stalls(self):
        self.waits(1)
        for path in [None] + [self.tools("curl")] * bool(shutil.which("wget")):
            for Handler.how in ("silent", "stalls"):
                self.refused(REFUSED, f"127.0.0.1:{self.server.server_port}/{TAR} cannot be fetched", "stalled for 1 seconds",
                             "set KILN_DOWNLOAD to another place", path=path)

    def test_a_download_that_is_slow(self):
        self.waits(3)
        Handler.how = "slow"
        code, said = self.install()
        self.assertEqual(code, 0, said)

    def test_a_file_that_is_gone(self):
        (self.release / TAR).unlink()
        self.refused(REFUSED, "cannot be fetched")
        self.refused(REFUSED, "cannot be fetched", words=["--prefix", f"{self.home}/of/folders/none/was/there"])
        (self.home / "bin").write_text("a file in the way")
        before = self.inside()
        self.assertEqual(self.install("--prefix", str(self.home))[0], REFUSED)
        self.assertEqual(self.inside(), before)

    def test_a_tool_that_is_missing(self):
        for tool in ("sha256sum", "gzip"):
            path = self.tools(tool)
            self.refused(LACKING, f"needs {tool}", path=path)
            shutil.rmtree(path)
        self.refused(LACKING, "needs curl or wget", path=self.tools("curl", "wget"))

    def test_a_machine_that_it_is_not_for(self):
        self.refused(LACKING, "this is riscv64", path=self.fake("uname", "[ $1 = -m ] && echo riscv64 || echo Linux"))
        self.refused(LACKING, "this is Darwin", path=self.fake("uname", "echo Darwin"))
        self.fake("uname", f"[ $1 = -m ] && echo {MACHINE} || echo Linux")
        self.refused(LACKING, "2.28 or later; this is 2.27", path=self.fake("getconf", "echo glibc 2.27"))
        self.refused(LACKING, "such as musl", path=self.fake("getconf", "exit 1"))
        code, said = self.install(path=self.fake("getconf", "echo glibc 2.40.9000"))  # of a distribution under way
        self.assertEqual((code, "9000" in said), (0, False), said)

    def test_nobody_who_reads_what_it_says(self):
        for where in ("2>&-", "2>/dev/full", "2>&1 | head -n 1"):
            done = subprocess.run(["/bin/sh", "-c", f'/bin/sh "$0" {where}', self.script], check=False, capture_output=True,
                                  env={"HOME": str(self.home), "PATH": os.environ["PATH"]})
            self.assertEqual(done.returncode, 0, where)
            self.assertTrue((self.home / ".local/bin/kiln").exists(), where)
            self.assertEqual(list((self.home / ".local/opt").glob(".*")), [], where)
            shutil.rmtree(self.home / ".local")

    def test_a_command_that_does_not_run(self):
        self.pack(TAR, f"kiln-1.2.3-linux-{MACHINE}", {"bin/kiln": "#!/bin/sh\nexit 1\n"})
        self.script.write_text(load_release().installer("1.2.3", f"http://127.0.0.1:{self.server.server_port}", self.release))
        for words in ((), ("--kernels",)):
            self.assertIn(f"kiln: {TAR} does not run on this machine", self.refused(REFUSED, words=words))

    def test_what_is_in_the_way_stays(self):
        kiln = self.home / ".local/bin/kiln"
        kiln.parent.mkdir(parents=True)
        kiln.write_text("mine")
        before = self.inside()
        code, said = self.install()
        self.assertEqual((code, kiln.read_text(), self.inside()), (REFUSED, "mine", before))
        self.assertIn(f"{kiln} is there, and not of this script", said)

    def test_a_failed_update_leaves_what_was_there(self):
        self.assertEqual(self.install()[0], 0)
        before = self.inside()
        (self.release / TAR).write_bytes(b"other")
        self.assertEqual(self.install()[0], REFUSED)
        self.assertEqual(self.inside(), before)

    def test_others_can_run_it_under_any_umask(self):
        before = os.umask(0o077)
        try:
            self.assertEqual(self.install()[0], 0)
        finally:
            os.umask(before)
        for place in (self.home / ".local").rglob("*"):
            if not place.is_symlink() and (place.is_dir() or place.parent.name == "bin"):
                self.assertEqual(place.stat().st_mode & 0o755, 0o755, place)

    def test_what_it_prints_can_be_pasted(self):
        prefix = self.home / "it's a $HOME; folder"
        code, said = self.install("--prefix", str(prefix))
        self.assertEqual(code, 0, said)
        path, cmake, remove = (re.search(pattern, said).group(1) for pattern in (
            "add it to PATH:  (.*)", r"for CMake: (.*)\. To remove", "To remove all of it: (.*)"))

        def pasted(line):
            return subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, text=True, cwd=self.work).stdout

        self.assertEqual(pasted(f"{path}; command -v kiln"), f"{prefix}/bin/kiln\n")
        self.assertEqual(pasted(f"printf %s {cmake}"), f"-DCMAKE_PREFIX_PATH={prefix}/opt/kiln-1.2.3")
        pasted(remove)
        self.assertEqual(list(prefix.rglob("*kiln*")), [])

    def test_a_bin_that_is_a_link(self):
        (self.home / "scripts").mkdir()
        (self.home / ".local").mkdir()
        (self.home / ".local/bin").symlink_to("../scripts")
        for _ in range(2):
            code, said = self.install()
            self.assertEqual(code, 0, said)
            self.assertIn("installed kiln 1.2.3 in", said)

    def test_what_was_stopped_between_two_moves_has_the_old_tree(self):
        self.assertEqual(self.install()[0], 0)
        before = self.inside()
        self.install(path=self.fake("mv", 'case "$*" in *tree*opt/kiln-1.2.3) kill -TERM $PPID; exit 1; esac; exec /bin/mv "$@"'))
        self.assertEqual(self.inside(), before)
        self.install(path=self.fake("mv", 'case "$*" in */before) /bin/mv "$@"; kill -TERM $PPID; exit 0; esac; exec /bin/mv "$@"'))
        self.assertEqual(self.inside(), before)

    def test_two_at_once(self):
        tree = self.home / ".local/opt/kiln-1.2.3"
        path = self.fake("mv", f'case "$*" in *tree*opt/kiln-1.2.3) [ -e {tree} ] || {{ mkdir {tree}; touch {tree}/whole; }}; esac; exec /bin/mv "$@"')
        code, said = self.install(path=path)
        self.assertEqual((code, os.listdir(tree)), (REFUSED, ["whole"]), said)
        self.assertIn("was put there meanwhile, by another run of this script?", said)
        self.assertEqual(os.listdir(tree.parent), ["kiln-1.2.3"])

    def test_what_a_killed_run_left_goes(self):
        opt = self.home / ".local/opt"
        for name in (".kiln-abcdef", ".kiln-fedcba"):
            (opt / name / "tree").mkdir(parents=True)
        os.utime(opt / ".kiln-abcdef", (0, 0))  # of long ago; the other one may be under way
        self.assertEqual(self.install()[0], 0)
        self.assertEqual(sorted(os.listdir(opt)), [".kiln-fedcba", "kiln-1.2.3"])

    def test_options(self):
        code, said = self.install("--perfix", "x")
        self.assertEqual((code, self.inside()), (USAGE, []))
        self.assertIn("unknown option --perfix", said)
        for words in (["--prefix"], ["--prefix", ""], ["--prefix", "--kernels"]):
            code, said = self.install(*words)
            self.assertEqual((code, self.inside()), (USAGE, []), said)
        self.refused(LACKING, "HOME is not set", HOME="")
        self.refused(REFUSED, "/proc/kiln cannot be written", words=["--prefix", "/proc/kiln"])

    def test_a_tar_that_cannot_be_unpacked(self):
        self.refused(REFUSED, "cannot be unpacked", path=self.fake("tar", "cat >/dev/null; exit 1"))

    def test_a_script_that_was_cut_does_nothing(self):
        text = self.script.read_text()
        for end in range(0, len(text) - len('main "$@"\n'), len(text) // 40):
            self.script.write_text(text[:end])
            self.install()
            self.assertEqual(self.inside(), [])


if __name__ == "__main__":
    unittest.main()
